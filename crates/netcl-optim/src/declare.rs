//! What the structs of optimizers have in common.

/// The struct of an optimizer: its base and settings, `new`, `new_with`, `options` and the trait. `$decay` names the weight decay
/// among the settings, `$momentum` what a schedule may change as a momentum. The settings have a method `check`.
macro_rules! optimizer {
    (
        $(#[$doc:meta])*
        $name:ident, $options:ident, $rule:ident
        $(, decay: $decay:ident)? $(, momentum: $($momentum:tt).+)?
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            base: $crate::base::Base,
            options: $options,
        }

        impl $name {
            /// An optimizer with a learning rate and the usual settings.
            pub fn new(params: impl IntoIterator<Item = Tensor>, lr: f64) -> Result<$name> {
                $name::new_with(params, $options { lr, ..Default::default() })
            }

            /// An optimizer with all its settings.
            ///
            /// # Errors
            /// For settings out of range, for no parameters, and for parameters that are given twice or are not leaves.
            pub fn new_with(params: impl IntoIterator<Item = Tensor>, options: $options) -> Result<$name> {
                options.check()?;
                let params = params.into_iter().collect();
                let base = $crate::base::Base::new($rule(options), params, options.lr, 0.0 $(+ options.$decay)?)?;
                Ok($name { base, options })
            }

            /// The settings, with what the first group has now.
            pub fn options(&self) -> $options {
                let mut options = self.options;
                if let Some(group) = self.base.groups().first() {
                    options.lr = group.learning_rate();
                    $(options.$decay = group.weight_decay();)?
                    $(options.$($momentum).+ = group.momentum().unwrap_or(options.$($momentum).+);)?
                }
                options
            }
        }

        impl $crate::optimizer::Optimizer for $name {
            fn base(&self) -> &$crate::base::Base {
                &self.base
            }

            fn base_mut(&mut self) -> &mut $crate::base::Base {
                &mut self.base
            }
        }
    };
}

pub(crate) use optimizer;
