//! Losses as modules: the functions of [`functional`](crate::functional) with their settings kept.

use netcl_autograd::ops::loss::{
    BceOptions, BceWithLogitsOptions, CosineEmbeddingOptions, CrossEntropyOptions, CtcOptions, GaussianNllOptions,
    HingeEmbeddingOptions, HuberOptions, KlDivOptions, MarginRankingOptions, MultiMarginOptions,
    MultilabelSoftMarginOptions, NllOptions, PoissonNllOptions, Reduction, SmoothL1Options, Target,
    TripletMarginOptions, binary_cross_entropy, binary_cross_entropy_with_logits, cosine_embedding_loss, cross_entropy,
    ctc_loss, gaussian_nll_loss, hinge_embedding_loss, huber_loss, kl_div, l1_loss, margin_ranking_loss, mse_loss,
    multi_margin_loss, multilabel_margin_loss, multilabel_soft_margin_loss, nll_loss, poisson_nll_loss, smooth_l1_loss,
    soft_margin_loss, triplet_margin_loss,
};
use netcl_autograd::{IndexTensor, Result, Tensor};

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

    /// `max(0, -target * (input1 - input2) + margin)`: the first score should be the larger one where the target is 1.
    MarginRankingLoss {
        /// How much larger the better score should be.
        #[setting(default = 0.0)]
        pub margin: f64,
        /// What becomes of the pairs' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input1: &Tensor, input2: &Tensor, target: &Tensor) => {
        let MarginRankingLoss { margin, reduction } = *this;
        margin_ranking_loss(input1, input2, target, &MarginRankingOptions { margin, reduction })
    };

    /// The input itself where the target is 1, `max(0, margin - input)` where it is -1.
    HingeEmbeddingLoss {
        /// The distance at which pairs that should differ cost nothing.
        #[setting(default = 1.0)]
        pub margin: f64,
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, target: &Tensor) => {
        let HingeEmbeddingLoss { margin, reduction } = *this;
        hinge_embedding_loss(input, target, &HingeEmbeddingOptions { margin, reduction })
    };

    /// `log(1 + exp(-target * input))`, for targets of 1 and -1.
    SoftMarginLoss {
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, target: &Tensor) => soft_margin_loss(input, target, this.reduction);

    /// How far other classes are not below the label's score by a margin, as a mean over the classes.
    MultiMarginLoss {
        /// A factor for the rows of each class.
        #[module(buffer)]
        #[setting(skip = None)]
        pub weight: Option<Tensor>,
        /// The exponent of each class's hinge: 1 or 2.
        #[setting(default = 1, least = 1)]
        pub p: usize,
        /// How much larger the score of the right class should be.
        #[setting(default = 1.0)]
        pub margin: f64,
        /// What becomes of the rows' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn<'t>(this, input: &Tensor, target: impl Into<Target<'t>>) => {
        let MultiMarginLoss { weight, p, margin, reduction } = this.clone();
        // A larger exponent than any that there is stays one.
        let p = u32::try_from(p).unwrap_or(u32::MAX);
        multi_margin_loss(input, target, &MultiMarginOptions { p, margin, weight, reduction })
    };

    /// How far other classes are not below the scores of a row's labels by 1. The labels of a row come first, then -1.
    MultiLabelMarginLoss {
        /// What becomes of the rows' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, labels: &IndexTensor) => multilabel_margin_loss(input, labels, this.reduction);

    /// [`BCEWithLogitsLoss`] of several labels at once, as a mean over the classes.
    MultiLabelSoftMarginLoss {
        /// A factor for each class.
        #[module(buffer)]
        #[setting(skip = None)]
        pub weight: Option<Tensor>,
        /// What becomes of the rows' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, target: &Tensor) => {
        let MultiLabelSoftMarginLoss { weight, reduction } = this.clone();
        multilabel_soft_margin_loss(input, target, &MultilabelSoftMarginOptions { weight, reduction })
    };

    /// The negative log-likelihood of counts under rates.
    PoissonNLLLoss {
        /// Whether the input holds logarithms of rates.
        #[setting(default = true)]
        pub log_input: bool,
        /// Whether Stirling's approximation of what depends on the counts alone is added.
        #[setting(default = false)]
        pub full: bool,
        /// Added to rates before their logarithm is taken.
        #[setting(default = 1e-8)]
        pub eps: f64,
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, target: &Tensor) => {
        let PoissonNLLLoss { log_input, full, eps, reduction } = *this;
        poisson_nll_loss(input, target, &PoissonNllOptions { log_input, full, eps, reduction })
    };

    /// The negative log-likelihood of values that have a variance of their own.
    GaussianNLLLoss {
        /// Whether the constant part is added.
        #[setting(default = false)]
        pub full: bool,
        /// The least variance.
        #[setting(default = 1e-6)]
        pub eps: f64,
        /// What becomes of the elements' losses.
        #[setting(default)]
        pub reduction: Reduction,
    }
    fn(this, input: &Tensor, target: &Tensor, var: &Tensor) => {
        let GaussianNLLLoss { full, eps, reduction } = *this;
        gaussian_nll_loss(input, target, var, &GaussianNllOptions { full, eps, reduction })
    };

    /// The negative log-likelihood of sequences of labels whose places in time are not known (connectionist temporal classification).
    CTCLoss {
        /// The class that stands for no label.
        #[setting(default = 0)]
        pub blank: usize,
        /// What becomes of the samples' losses.
        #[setting(default)]
        pub reduction: Reduction,
        /// Whether targets that do not fit into their inputs count as 0.
        #[setting(default = false)]
        pub zero_infinity: bool,
    }
    fn(this, log_probs: &Tensor, targets: &IndexTensor, input_lengths: &[usize], target_lengths: &[usize]) => {
        let CTCLoss { blank, reduction, zero_infinity } = *this;
        ctc_loss(log_probs, targets, input_lengths, target_lengths, &CtcOptions { blank, reduction, zero_infinity })
    };
}
