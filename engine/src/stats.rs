//! The counters of an engine, cheap enough for the data path, and their Prometheus text.

use crate::loss::Cause;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LOSSES: &str = "ferry_losses_total";

macro_rules! counters {
    ($($name:ident, $metric:literal, $help:literal;)*) => {
        /// Counters since the engine was opened. Each is read on its own, so together they are no snapshot.
        #[derive(Debug, Default)]
        pub struct Stats {
            $(pub $name: AtomicU64,)*
            /// Lanes and sessions' connections that were lost, by `Cause`.
            pub losses: [AtomicU64; Cause::ALL.len()],
        }

        /// The values of all counters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct Counts { $(#[doc = $help] pub $name: u64,)* }

        impl Stats {
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }

            /// Returns the counters in Prometheus' text format; the caller appends the gauges.
            pub fn prometheus(&self) -> String {
                let mut text = String::new();
                $(prometheus_line(&mut text, $metric, "counter", $help, self.$name.load(Relaxed));)*
                let help = "Lanes and sessions' connections that were lost, by cause.";
                for (cause, count) in Cause::ALL.iter().zip(&self.losses) {
                    let header = (*cause as usize == 0).then_some(("counter", help));
                    let labelled = format!("{LOSSES}{{cause=\"{}\"}}", cause.name());
                    labelled_line(&mut text, &labelled, header, count.load(Relaxed));
                }
                text
            }
        }
    };
}

counters! {
    transfers_submitted, "ferry_transfers_submitted_total", "Transfers accepted by submit.";
    transfers_done, "ferry_transfers_done_total", "Transfers that ended DONE.";
    transfers_failed, "ferry_transfers_failed_total", "Transfers that ended FAILED.";
    transfers_cancelled, "ferry_transfers_cancelled_total", "Transfers that ended CANCELLED.";
    transfers_timed_out, "ferry_transfers_timed_out_total", "Transfers that ended TIMED_OUT.";
    requests_in, "ferry_requests_total", "Requests in submitted transfers.";
    slices_out, "ferry_slices_total", "Slices that the requests became after coalescing and cutting.";
    bytes_written, "ferry_bytes_written_total", "Payload bytes of WRITEs confirmed by their targets.";
    bytes_read, "ferry_bytes_read_total", "Payload bytes of READs that arrived.";
    bytes_applied, "ferry_bytes_applied_total", "Payload bytes of peers' WRITEs placed in this engine's regions.";
    bytes_served, "ferry_bytes_served_total", "Payload bytes sent for peers' READs.";
    requests_refused, "ferry_requests_refused_total", "Descriptors of peers refused by this engine's checks.";
    notifications_received, "ferry_notifications_received_total", "Notifications delivered here.";
    sessions_up, "ferry_sessions_up_total", "Sessions established.";
    sessions_lost, "ferry_sessions_lost_total", "Sessions lost.";
    lanes_lost, "ferry_lanes_lost_total", "Lanes lost or torn down.";
    handshakes_refused, "ferry_handshakes_refused_total", "Inbound connections turned away.";
    late_applies, "ferry_late_applies_total", "Receives that straddled the end of their lease.";
    send_calls, "ferry_send_calls_total", "System calls that sent on lanes.";
    receive_calls, "ferry_receive_calls_total", "System calls that received from lanes.";
    bytes_local, "ferry_bytes_local_total", "Payload bytes that this engine copied over same-host paths.";
    bytes_device, "ferry_bytes_device_total", "Payload bytes that devices here copied by themselves from or to memory of a peer's devices.";
    spins, "ferry_spins_total", "Times that a thread polled a lane before sleeping.";
    spins_vain, "ferry_spins_vain_total", "Times that a thread polled a lane before sleeping and found nothing.";
}

/// Appends one metric with its help and type.
pub fn prometheus_line(text: &mut String, metric: &str, kind: &str, help: &str, value: u64) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}\n{metric} {value}");
}

/// Appends a value of a metric with labels. Its help and type come before the first value.
pub fn labelled_line(text: &mut String, labelled: &str, header: Option<(&str, &str)>, value: u64) {
    let metric = labelled.split('{').next().unwrap_or(labelled);
    if let Some((kind, help)) = header {
        let _ = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
    }
    let _ = writeln!(text, "{labelled} {value}");
}

impl Stats {
    pub fn submitted(&self, requests: u64, slices: u64) {
        self.transfers_submitted.fetch_add(1, Relaxed);
        self.requests_in.fetch_add(requests, Relaxed);
        self.slices_out.fetch_add(slices, Relaxed);
    }

    pub fn notification_received(&self) {
        self.notifications_received.fetch_add(1, Relaxed);
    }

    pub fn late_apply(&self) {
        self.late_applies.fetch_add(1, Relaxed);
    }
}
