//! What a run is made of, apart from device and folder.

use netcl_data::transforms::{Border, Transform};
use serde::{Deserialize, Serialize};

use crate::architecture::Network;
use crate::error::{Error, Result};

/// Everything that decides the result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The name of the data set, or its folder.
    pub data: String,
    /// Which network.
    pub network: Network,
    /// How often to go over the training images.
    pub epochs: usize,
    /// How many images make one step.
    pub batch_size: usize,
    /// The largest learning rate; it rises to this and then falls.
    pub lr: f64,
    /// How much of the weights is taken away in every step, times the learning rate.
    pub weight_decay: f64,
    /// The part of each target that is spread over all classes.
    pub label_smoothing: f64,
    /// Whether training images are shifted, turned or mirrored at random, as suits the data.
    pub augment: bool,
    /// What decides the first weights, the order of the images and everything else that is random.
    pub seed: u64,
    /// Train and test with this many images at most.
    pub limit: Option<usize>,
}

impl Settings {
    /// What works well for a data set and a network.
    pub fn recommended(data: &str, network: Network) -> Settings {
        let small = data == "digits";
        let (epochs, batch_size, lr) = match (small, network) {
            (true, Network::Mlp) => (40, 32, 3e-3),
            (true, Network::Cnn) => (20, 32, 5e-3),
            (true, Network::Resnet18) => (6, 32, 3e-3),
            (false, Network::Mlp) => (10, 128, 2e-3),
            (false, Network::Cnn) => (5, 64, 3e-3),
            (false, Network::Resnet18) => (10, 128, 4e-3),
        };
        Settings {
            data: data.to_owned(),
            network,
            epochs,
            batch_size,
            lr,
            weight_decay: 0.01,
            label_smoothing: 0.0,
            augment: small || network == Network::Resnet18,
            seed: 0,
            limit: None,
        }
    }

    /// An error that names the first setting out of its range.
    pub fn check(&self) -> Result<()> {
        let range = |ok: bool, what: String| if ok { Ok(()) } else { Err(Error::setting(what)) };
        range(self.epochs > 0, "there must be at least 1 epoch".to_owned())?;
        range(self.batch_size > 0, "the batch size must be at least 1".to_owned())?;
        let (lr, decay, smoothing) = (self.lr, self.weight_decay, self.label_smoothing);
        range(lr.is_finite() && lr > 0.0, format!("the learning rate is {lr}; use a number above 0, such as 0.001"))?;
        let decay_fits = decay.is_finite() && decay >= 0.0;
        range(decay_fits, format!("the weight decay is {decay}; use 0 or a number above, such as 0.01"))?;
        let smoothing_fits = (0.0..1.0).contains(&smoothing);
        range(smoothing_fits, format!("the label smoothing is {smoothing}; use a number from 0 up to, but not, 1"))?;
        range(self.limit != Some(0), "the limit must be at least 1 image".to_owned())
    }

    /// The changes of training images that suit the data set: digits may be shifted and turned, but not mirrored; clothes, animals and
    /// vehicles may be mirrored; of other data nothing is known.
    pub fn changes(&self, [_, height, width]: [usize; 3]) -> Vec<Transform> {
        let border = Border::Constant(0.0);
        let shifted = |padding| Transform::Crop { size: [height, width], padding, border };
        let turned = |pixels: f64| Transform::Affine {
            degrees: 10.0,
            translate: [pixels / width as f64, pixels / height as f64].map(|share| share.min(1.0)),
            scale: (0.9, 1.1),
            shear: 0.0,
            border,
        };
        let mirrored = Transform::HorizontalFlip { probability: 0.5 };
        match self.data.as_str() {
            _ if !self.augment => vec![],
            "digits" => vec![turned(1.0)],
            "mnist" => vec![turned(2.0)],
            "fashion-mnist" => vec![shifted(1), mirrored],
            "cifar-10" | "cifar-100" => vec![shifted(4), mirrored],
            _ => vec![shifted(1)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let good = Settings::recommended("digits", Network::Cnn);
        good.check().unwrap();
        let bad = [
            (Settings { epochs: 0, ..good.clone() }, "epoch"),
            (Settings { batch_size: 0, ..good.clone() }, "batch size"),
            (Settings { lr: 0.0, ..good.clone() }, "learning rate is 0"),
            (Settings { lr: f64::NAN, ..good.clone() }, "learning rate is NaN"),
            (Settings { weight_decay: -1.0, ..good.clone() }, "weight decay is -1"),
            (Settings { label_smoothing: 1.0, ..good.clone() }, "label smoothing is 1"),
            (Settings { limit: Some(0), ..good.clone() }, "limit"),
        ];
        for (settings, expected) in bad {
            let text = settings.check().unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn every_recommendation_is_usable_and_digits_are_not_mirrored() {
        for network in Network::ALL {
            for data in ["digits", "mnist", "fashion-mnist", "cifar-10", "some/folder"] {
                let settings = Settings { augment: true, ..Settings::recommended(data, network) };
                settings.check().unwrap();
                let changes = settings.changes([1, 28, 28]);
                let is_flip = |change: &Transform| matches!(change, Transform::HorizontalFlip { .. });
                assert_eq!(changes.iter().any(is_flip), ["fashion-mnist", "cifar-10"].contains(&data));
                assert!(netcl_data::transforms::Compose::new(changes).is_ok());
                assert!(Settings { augment: false, ..settings }.changes([1, 28, 28]).is_empty());
            }
        }
    }
}
