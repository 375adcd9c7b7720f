//! The definition of the transactions of a benchmark.

/// Defines the transactions of a benchmark: for each one its name in results, its share of the standard mix with the
/// name of the option, and its parameters. The result is `Transaction`, its `Kind`, and `Mix`.
macro_rules! transactions {
    ($(
        $kind:ident = $text:literal, $share:ident: $percent:literal { $($field:ident: $type:ty),+ }
    )+) => {
        $crate::recorder::kinds! {
            /// The transactions, in the order of the benchmark's description.
            #[allow(missing_docs)] // The table in the module documentation describes them.
            pub enum Kind {
                $($kind = $text,)+
            }
        }

        /// A transaction with its parameters, which are named as in the benchmark's description.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // As above.
        pub enum Transaction {
            $($kind { $($field: $type),+ },)+
        }

        impl Transaction {
            /// Returns its kind.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$kind { .. } => Kind::$kind,)+
                }
            }
        }

        /// Percentages of the transactions; they add up to 100.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[allow(missing_docs)] // Each field is the share of the transaction with its name.
        pub struct Mix {
            $(pub $share: u8,)+
        }

        impl Default for Mix {
            /// Returns the standard mix of the benchmark.
            fn default() -> Self {
                Self { $($share: $percent,)+ }
            }
        }

        impl Mix {
            /// Returns the percentages in the order of [`Kind::ALL`].
            pub fn percents(&self) -> [u8; Kind::ALL.len()] {
                [$(self.$share),+]
            }
        }
    };
}
pub(crate) use transactions;
