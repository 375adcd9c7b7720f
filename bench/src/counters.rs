//! Counters that are added up and subtracted field by field.

use farm_core::worker::Worker;

/// A counter, or a struct of counters.
pub trait Counters: Copy + Default {
    /// Adds other counts.
    fn add(&mut self, other: &Self);

    /// Returns the counts since `before`, which must be earlier counts of the same worker.
    #[must_use]
    fn since(&self, before: &Self) -> Self;
}

impl Counters for u64 {
    fn add(&mut self, other: &Self) {
        *self = self.wrapping_add(*other);
    }

    fn since(&self, before: &Self) -> Self {
        self.wrapping_sub(*before)
    }
}

impl Counters for () {
    fn add(&mut self, (): &Self) {}

    fn since(&self, (): &Self) -> Self {}
}

/// Counters of a worker. The cost of a run is the difference between the counts at its end and at its start.
pub trait Costs: Counters + Send + 'static {
    /// Returns the counts so far; 0 for counters that the clients of a closed loop increment themselves.
    fn of(worker: &mut Worker) -> Self;
}

impl Costs for () {
    fn of(_: &mut Worker) -> Self {}
}

/// Defines a struct of counters.
macro_rules! counters {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)+ }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize,
        )]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)+
        }

        impl $crate::counters::Counters for $name {
            fn add(&mut self, other: &Self) {
                $($crate::counters::Counters::add(&mut self.$field, &other.$field);)+
            }

            fn since(&self, before: &Self) -> Self {
                Self {
                    $($field: $crate::counters::Counters::since(&self.$field, &before.$field),)+
                }
            }
        }
    };
}
pub(crate) use counters;
