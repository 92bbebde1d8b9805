//! What a pool counts, as text for Prometheus.

use ferry_kv::page::Page;

use crate::outcome::Outcome;
use crate::pool::{Pool, PoolStats, TenantStats};

impl PoolStats {
    /// Returns how many keys of gets have ended in this way.
    pub fn gets_ended(&self, outcome: Outcome) -> u64 {
        self.calls.gets_ended[outcome as usize]
    }

    /// Returns how many keys of puts have ended in this way.
    pub fn puts_ended(&self, outcome: Outcome) -> u64 {
        self.calls.puts_ended[outcome as usize]
    }

    /// Returns all of them in Prometheus' text format, without those of tenants.
    pub(crate) fn prometheus(&self) -> String {
        let mut page = Page::default();
        let by_outcome =
            |ended: [u64; Outcome::ALL.len()]| Outcome::ALL.map(|it| (it.name(), ended[it as usize]));
        let help = "Keys of gets, by their outcome: OK is a hit, all others are misses by their reason.";
        let ended = by_outcome(self.calls.gets_ended);
        page.labelled("ferry_pool_gets_total", "counter", "outcome", help, ended);
        let help = "Keys of puts, by their outcome.";
        let ended = by_outcome(self.calls.puts_ended);
        page.labelled("ferry_pool_puts_total", "counter", "outcome", help, ended);
        let (calls, owner) = (&self.calls, &self.owner);
        let counters = [
            ("ferry_pool_hits_here_total", "Hits that this node's own memory served.", calls.hits_here),
            ("ferry_pool_bytes_got_total", "Bytes of values that gets brought.", calls.got_bytes),
            ("ferry_pool_bytes_put_total", "Bytes of values that puts stored.", calls.put_bytes),
            (
                "ferry_pool_silent_nodes_total",
                "Nodes that owed an answer, were silent, and were fenced.",
                calls.silent,
            ),
            ("ferry_pool_values_stored_total", "Values that this node has stored.", owner.stored),
            ("ferry_pool_bytes_stored_total", "Bytes of these values.", owner.stored_bytes),
            ("ferry_pool_bytes_served_total", "Bytes that this node has sent for gets.", owner.served_bytes),
            ("ferry_pool_evictions_total", "Values that this node has evicted.", owner.evicted),
            (
                "ferry_pool_corrupt_total",
                "Values that did not match their checksum, and were dropped.",
                owner.corrupt,
            ),
            ("ferry_pool_repaired_total", "Values that were brought again after that.", owner.repaired),
            (
                "ferry_pool_repair_failures_total",
                "Values that could not be brought again, though another node may have them.",
                owner.repairs_failed,
            ),
            ("ferry_pool_drained_total", "Values that a drain has moved to other nodes.", owner.drained),
            (
                "ferry_pool_drained_here_total",
                "Values that a drain found at another node.",
                owner.drained_here,
            ),
            ("ferry_pool_file_saved_total", "Values that were copied to this node's file.", owner.saved),
            ("ferry_pool_file_loaded_total", "Values that gets brought back from it.", owner.loaded),
            ("ferry_pool_file_evictions_total", "Values that the file has evicted.", owner.tier_evicted),
            ("ferry_pool_file_failures_total", "Copies to or from it that have failed.", owner.tier_failed),
        ];
        let gauges = [
            ("ferry_pool_draining", "1: this node is drained, and takes no puts.", self.is_draining.into()),
            ("ferry_pool_values", "Values that this node holds.", self.objects),
            ("ferry_pool_capacity_bytes", "Bytes that this node lends.", self.capacity),
            ("ferry_pool_free_bytes", "Bytes of these that hold no value.", self.free),
            ("ferry_pool_file_values", "Values in this node's file.", self.tier_objects),
            ("ferry_pool_file_capacity_bytes", "Bytes of the file for values.", self.tier_capacity),
            ("ferry_pool_file_free_bytes", "Bytes of these that hold no value.", self.tier_free),
            ("ferry_pool_index_entries", "Entries of this node's part of the index.", self.index_entries),
            ("ferry_pool_index_bytes", "Bytes of that part.", self.index_bytes),
            ("ferry_pool_nodes", "Nodes that are connected, this one included.", self.nodes),
        ];
        counters.into_iter().for_each(|(name, help, value)| page.one(name, "counter", help, value));
        gauges.into_iter().for_each(|(name, help, value)| page.one(name, "gauge", help, value));
        page.text()
    }
}

impl Pool {
    /// Returns the counts as text for Prometheus.
    pub fn metrics(&self) -> String {
        self.stats().prometheus() + &prometheus(&self.tenants())
    }
}

/// The counts of the tenants with a quota, in Prometheus' text format.
fn prometheus(tenants: &[TenantStats]) -> String {
    let mut page = Page::default();
    let mut add = |metric, kind, help, of: fn(&TenantStats) -> u64| {
        page.labelled(metric, kind, "tenant", help, tenants.iter().map(|it| (it.tenant.as_str(), of(it))));
    };
    if !tenants.is_empty() {
        let help = "Bytes of memory that a tenant with a quota has.";
        add("ferry_pool_tenant_bytes", "gauge", help, |it| it.bytes);
        let help = "Values of a tenant with a quota in memory.";
        add("ferry_pool_tenant_values", "gauge", help, |it| it.values);
        let help = "Bytes of the file that a tenant with a quota has.";
        add("ferry_pool_tenant_file_bytes", "gauge", help, |it| it.file_bytes);
        let help = "Values that memory has evicted for others of their tenant.";
        add("ferry_pool_tenant_evictions_total", "counter", help, |it| it.evicted);
    }
    page.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_of_a_miss_has_its_line() {
        let mut stats = PoolStats { nodes: 3, ..PoolStats::default() };
        stats.calls.gets_ended = std::array::from_fn(|number| 10 + number as u64);
        stats.calls.puts_ended[Outcome::Here as usize] = 5;
        let text = stats.prometheus();
        for line in [
            "ferry_pool_gets_total{outcome=\"OK\"} 10",
            "ferry_pool_gets_total{outcome=\"EVICTED\"} 14",
            "ferry_pool_gets_total{outcome=\"CLOSED\"} 21",
            "ferry_pool_puts_total{outcome=\"HERE\"} 5",
            "# TYPE ferry_pool_nodes gauge",
            "ferry_pool_nodes 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(stats.gets_ended(Outcome::OwnerLost), 15);
    }

    #[test]
    fn the_name_of_a_tenant_cannot_end_its_label() {
        let tenant = "a\"b\\c\nd".to_owned();
        let quota = TenantStats { tenant, bytes: 8, values: 7, evicted: 6, file_bytes: 5 };
        let text = prometheus(&[quota.clone(), TenantStats { tenant: "t".into(), ..quota }]);
        for (metric, value) in [("bytes", 8), ("values", 7), ("evictions_total", 6), ("file_bytes", 5)] {
            for name in ["a\\\"b\\\\c\\nd", "t"] {
                let line = format!("ferry_pool_tenant_{metric}{{tenant=\"{name}\"}} {value}");
                assert!(text.lines().any(|found| found == line), "{line}\n{text}");
            }
        }
        assert_eq!(text.lines().filter(|line| line.ends_with(" gauge")).count(), 3);
        assert_eq!(prometheus(&[]), "");
    }
}
