//! Which ranks exchange which bytes. Pure: takes layouts and block lists, and gives ranges by strides.
