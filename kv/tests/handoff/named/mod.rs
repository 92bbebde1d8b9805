//! Stories of one machine whose peers are played by the test, message by message: `rig` plays them, `offers` has the
//! producer's side, `takes` the consumer's, `retracts` and `windows` what is taken back, `pending` events of devices,
//! `hostile` what no cache says, `silence` caches that are silent, late or closed, `bounds` the limits, `metrics` and `record` what is counted and recorded, `reported` what
//! users of other handoffs met, `whole` the end of takes from several producers.

mod bounds;
mod causes;
mod groups;
mod hostile;
mod metrics;
mod offers;
mod pending;
mod record;
mod reported;
mod retracts;
mod rig;
mod silence;
mod takes;
mod whole;
mod windows;
