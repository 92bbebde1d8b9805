//! Parses perftest's output: the line of values below the line of headings.

use anyhow::{ensure, Context};

use crate::workload::MIB;

const FIRST_HEADING: &str = "#bytes";

/// Returns bytes per second on average, from the output of a bandwidth test of one size. "MB/sec" and "MiB/sec" are
/// both 2^20 bytes: the printed name depends on the version, the number does not.
pub fn bytes_per_second(output: &str) -> anyhow::Result<f64> {
    let (heading, values) = table(output)?;
    let unit = match heading.contains("Gb/sec") {
        true => 1e9 / 8.0,
        false => MIB as f64,
    };
    // bytes, iterations, peak, average, messages
    let average = value(&values, 3)? * unit;
    ensure!(average > 0.0, "perftest measured nothing: {}", values.join(" "));
    Ok(average)
}

/// Returns nanoseconds of the median, "t_typical", from the output of a latency test of one size.
pub fn typical_ns(output: &str) -> anyhow::Result<f64> {
    let (heading, values) = table(output)?;
    ensure!(heading.contains("t_typical[usec]"), "perftest measured no typical latency: {heading}");
    // bytes, iterations, min, max, typical
    let typical = value(&values, 4)? * 1e3;
    ensure!(typical > 0.0, "perftest measured nothing: {}", values.join(" "));
    Ok(typical)
}

fn table(output: &str) -> anyhow::Result<(&str, Vec<&str>)> {
    let mut lines = output.lines().skip_while(|line| !line.trim_start().starts_with(FIRST_HEADING));
    let heading = lines.next().context("perftest printed no headings")?;
    let values = lines.next().context("perftest printed no values")?;
    Ok((heading, values.split_whitespace().collect()))
}

fn value(values: &[&str], index: usize) -> anyhow::Result<f64> {
    let word = values.get(index).with_context(|| format!("only {} values in a line", values.len()))?;
    let number: f64 = word.parse().with_context(|| format!("{word} is no number"))?;
    ensure!(number.is_finite(), "{word} is no number");
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str =
        "---------------------------------------------------------------------------------------\n";
    /// perftest 4.5 as Debian has it, in the virtual machine.
    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      500              64.30              49.68  \t\t   0.000795
";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 2       1000          19.22          10996.48      21.50    \t       230.47      \t1035.71\t\t6164.86 \t\t10996.48
";

    #[test]
    fn what_debians_perftest_prints() {
        let text = format!("{RULE} Mtu             : 4096[B]\n{RULE}{BANDWIDTH}{RULE}");
        assert_eq!(bytes_per_second(&text).expect("a table"), 49.68 * MIB as f64);
        let gbits = text.replace("MB/sec", "Gb/sec");
        assert_eq!(bytes_per_second(&gbits).expect("a table"), 49.68e9 / 8.0);
        assert_eq!(
            bytes_per_second(&text.replace("MB/sec", "MiB/sec")).expect("a table"),
            49.68 * MIB as f64
        );
        assert_eq!(typical_ns(&format!("{RULE}{LATENCY}{RULE}")).expect("a table"), 21_500.0);
    }

    #[test]
    fn what_is_no_table_is_an_error() {
        for text in [
            "",
            RULE,
            " Couldn't connect to 127.0.0.1:18515\n",
            " #bytes #iterations",
            &BANDWIDTH.replace("49.68", "-nan"),
            &BANDWIDTH.replace("49.68", "0.00"),
            &BANDWIDTH.replace("49.68", "fast"),
            &BANDWIDTH[..BANDWIDTH.find("49.68").expect("it is there")],
        ] {
            assert!(bytes_per_second(text).is_err(), "{text}");
        }
        assert!(typical_ns(BANDWIDTH).is_err());
        assert!(typical_ns(&LATENCY[..LATENCY.find("21.50").expect("it is there")]).is_err());
    }
}
