//! The farm command line.
fn main() {}
