//! Models: every schedule of short programs of the engine's own types, by `ferry_sim_kernel::explore`. With the feature
//! `sim` each lock and each access to an atomic of the engine is a point at which another task may run, so nothing is
//! copied by hand: a model is a rig, two or three tasks, and what must hold whatever their order was.
//!
//! Why not loom over these types: loom's locks and atomics cannot be constants, and loom has no memory that two
//! processes share and no eventfd. Shuttle would add a second scheduler beside the simulation's. Accesses are in one
//! sequence here: weak memory orders are not tried, as they are by `engine/tests/loom_models`.
//!
//! MODEL_PREEMPTIONS replaces the bound of preemptions that each model has, 2 or 3.

mod completion;
mod door;
mod outbox;
mod queue;
mod rig;
mod table;
