//! Tests of the planner: a naive model against any two instances, named cases, and what is refused.

mod memory;
mod model;
mod named;
mod page;
mod property;
mod refused;
