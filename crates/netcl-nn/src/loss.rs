//! Losses as modules: the functions of [`functional`](crate::functional) with their settings kept.

use netcl_autograd::ops::loss::{
    BceOptions, BceWithLogitsOptions, CosineEmbeddingOptions, CrossEntropyOptions, HuberOptions, KlDivOptions,
    NllOptions, Reduction, SmoothL1Options, Target, TripletMarginOptions, binary_cross_entropy,
    binary_cross_entropy_with_logits, cosine_embedding_loss, cross_entropy, huber_loss, kl_div, l1_loss, mse_loss,
    nll_loss, smooth_l1_loss, triplet_margin_loss,
};
use netcl_autograd::{Result, Tensor};

use crate::Module;
use crate::settings::{Setting, Settings, Value, Wrong};

impl Setting for Reduction {
    fn wanted() -> String {
        r#""mean", "sum" or "none""#.to_owned()
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::Text(name) => {
                Reduction::parse(name).map_err(|_| Wrong::Other(format!("is {}, not {value}", Self::wanted())))
            }
            _ => Err(Wrong::Type),
        }
    }
    fn write(&self) -> Value {
        let name = match self {
            Reduction::None => "none",
            Reduction::Mean => "mean",
            Reduction::Sum => "sum",
        };
        Value::Text(name.to_owned())
    }
}

crate::choices! {
    /// What becomes of the elements of a [`KLDivLoss`].
    pub enum DivergenceReduction {
        /// They are returned as they are.
        None = "none",
        /// Their mean.
        #[default]
        Mean = "mean",
        /// Their sum.
        Sum = "sum",
        /// Their sum, divided by the length of the first axis: what the definition of the divergence asks for.
        BatchMean = "batchmean",
    }
}

/// A module from a loss function: settings, and what `forward` computes from them. Weights are buffers.
macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident { $($fields:tt)* }
       fn $(<$life:lifetime>)? ($this:ident $(, $input:ident: $type:ty)+) => $value:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Module, Settings)]
        #[module(settings, no_forward)]
        pub struct $name { $($fields)* }

        impl $name {
            /// The loss.
            pub fn forward $(<$life>)? (&self $(, $input: $type)+) -> Result<Tensor> {
                let $this = self;
                $value
            }
        }
    )*};
}

losses! {
    /// The square of the difference.
    ///
    /// ```
    /// use netcl_nn::MSELoss;
    /// use netcl_nn::autograd::{Tensor, manager};
    ///
    /// let row = |values: &[f32]| Tensor::from_host(&manager().cpu().queue, values, [values.len()]);
    /// assert_eq!(MSELoss::default().forward(&row(&[1.0, 5.0])?, &row(&[1.0, 2.0])?)?.item()?, 4.5);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    MSELoss {
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, target: &Tensor) => mse_loss(input, target, this.reduction);

    /// The absolute difference.
    L1Loss {
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, target: &Tensor) => l1_loss(input, target, this.reduction);

    /// The absolute difference, rounded off by a parabola where it is below `beta`.
    SmoothL1Loss {
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
        /// The difference at which the parabola becomes a line.
        #[setting(default = 1.0, least = 0)]
        pub beta: f64,
    }
    fn(this, input: &Tensor, target: &Tensor) => {
        let SmoothL1Loss { reduction, beta } = *this;
        smooth_l1_loss(input, target, &SmoothL1Options { beta, reduction })
    };

    /// Half the square of the difference below `delta`, linear above.
    HuberLoss {
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
        /// The difference at which the parabola becomes a line.
        #[setting(default = 1.0, least = 0)]
        pub delta: f64,
    }
    fn(this, input: &Tensor, target: &Tensor) => {
        let HuberLoss { reduction, delta } = *this;
        huber_loss(input, target, &HuberOptions { delta, reduction })
    };

    /// `-log(softmax(input)[target])` over axis 1, for class labels or probabilities as targets.
    ///
    /// ```
    /// use netcl_nn::CrossEntropyLoss;
    /// use netcl_nn::autograd::{Tensor, manager};
    ///
    /// let queue = manager().cpu().queue;
    /// let weight = Tensor::from_host(&queue, &[1.0f32, 3.0], [2])?;
    /// let loss = CrossEntropyLoss { weight: Some(weight), label_smoothing: 0.1, ..Default::default() };
    /// let logits = Tensor::from_host(&queue, &[0.0f32; 4], [2, 2])?;
    /// assert!((loss.forward(&logits, &[0, 1])?.item()? - 2f64.ln()).abs() < 1e-6);
    /// # Ok::<(), netcl_nn::autograd::Error>(())
    /// ```
    CrossEntropyLoss {
        /// A factor for each class.
        #[module(buffer)]
        #[setting(skip = None)]
        pub weight: Option<Tensor>,
        /// A label whose rows do not count.
        #[setting(default = Some(-100))]
        pub ignore_index: Option<isize>,
        /// What becomes of the rows' losses.
        #[setting(default)]
        pub reduction: Reduction,
        /// The share of the target that is spread over all classes.
        #[setting(default = 0.0)]
        pub label_smoothing: f64,
    }
    fn<'t>(this, input: &Tensor, target: impl Into<Target<'t>>) => {
        let CrossEntropyLoss { weight, ignore_index, reduction, label_smoothing } = this.clone();
        let ignore_index = ignore_index.map(|label| label as i64);
        cross_entropy(input, target, &CrossEntropyOptions { weight, ignore_index, label_smoothing, reduction })
    };

    /// `-input[target]` over axis 1, for logarithms of probabilities.
    NLLLoss {
        /// A factor for each class.
        #[module(buffer)]
        #[setting(skip = None)]
        pub weight: Option<Tensor>,
        /// A label whose rows do not count.
        #[setting(default = Some(-100))]
        pub ignore_index: Option<isize>,
        /// What becomes of the rows' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn<'t>(this, input: &Tensor, target: impl Into<Target<'t>>) => {
        let NLLLoss { weight, ignore_index, reduction } = this.clone();
        let ignore_index = ignore_index.map(|label| label as i64);
        nll_loss(input, target, &NllOptions { weight, ignore_index, reduction })
    };

    /// Cross entropy of probabilities of two classes.
    BCELoss {
        /// A factor for each element's loss.
        #[module(buffer)]
        #[setting(skip = None)]
        pub weight: Option<Tensor>,
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, target: &Tensor) => {
        let BCELoss { weight, reduction } = this.clone();
        binary_cross_entropy(input, target, &BceOptions { weight, reduction })
    };

    /// [`BCELoss`] of `sigmoid(input)`, computed in one safe step.
    BCEWithLogitsLoss {
        /// A factor for each element's loss.
        #[module(buffer)]
        #[setting(skip = None)]
        pub weight: Option<Tensor>,
        /// A factor for positive targets.
        #[module(buffer)]
        #[setting(skip = None)]
        pub pos_weight: Option<Tensor>,
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, target: &Tensor) => {
        let BCEWithLogitsLoss { weight, pos_weight, reduction } = this.clone();
        binary_cross_entropy_with_logits(input, target, &BceWithLogitsOptions { weight, pos_weight, reduction })
    };

    /// `target * (log(target) - input)`, for an input of logarithms.
    KLDivLoss {
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: DivergenceReduction,
        /// Whether the target holds logarithms as well.
        #[setting(default = false)]
        pub log_target: bool,
    }
    fn(this, input: &Tensor, target: &Tensor) => {
        let reduction = match this.reduction {
            DivergenceReduction::None => Reduction::None,
            DivergenceReduction::Sum => Reduction::Sum,
            DivergenceReduction::Mean | DivergenceReduction::BatchMean => Reduction::Mean,
        };
        let batch_mean = this.reduction == DivergenceReduction::BatchMean;
        kl_div(input, target, &KlDivOptions { log_target: this.log_target, batch_mean, reduction })
    };

    /// `1 - cos` for pairs with target 1, `max(cos - margin, 0)` for those with target -1.
    CosineEmbeddingLoss {
        /// Pairs that should differ cost nothing below this cosine.
        #[setting(default = 0.0)]
        pub margin: f64,
        /// What becomes of the pairs' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input1: &Tensor, input2: &Tensor, target: &Tensor) => {
        let CosineEmbeddingLoss { margin, reduction } = *this;
        cosine_embedding_loss(input1, input2, target, &CosineEmbeddingOptions { margin, reduction })
    };

    /// `max(distance(anchor, positive) - distance(anchor, negative) + margin, 0)`.
    TripletMarginLoss {
        /// How much farther the negative should be than the positive.
        #[setting(default = 1.0)]
        pub margin: f64,
        /// The norm of the distances.
        #[setting(default = 2.0, least = 1)]
        pub p: f64,
        /// Added to differences, so that equal vectors have a distance with a slope.
        #[setting(default = 1e-6)]
        pub eps: f64,
        /// Uses the distance from positive to negative where it is the smaller one.
        #[setting(default = false)]
        pub swap: bool,
        /// What becomes of the triplets' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, anchor: &Tensor, positive: &Tensor, negative: &Tensor) => {
        let TripletMarginLoss { margin, p, eps, swap, reduction } = *this;
        let options = TripletMarginOptions { margin, p, eps, swap, reduction };
        triplet_margin_loss(anchor, positive, negative, &options)
    };
}
