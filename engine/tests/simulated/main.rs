//! Whole engines on the simulated kernel: each test runs a program by many seeds. A seed repeats exactly.

mod basics;
mod loss;
mod world;
