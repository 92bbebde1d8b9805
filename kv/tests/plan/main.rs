//! Tests of the planner: a naive model against any two instances, and named cases.

mod model;
mod property;
