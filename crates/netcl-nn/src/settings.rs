//! What a layer is made with: named values with defaults, which constructors take, print-outs show and files hold.
//!
//! A struct of settings derives [`Settings`](trait@Settings); its fields are the constructor's arguments, in order:
//!
//! ```
//! use netcl_nn::Settings;
//!
//! #[derive(Clone, Debug, Settings)]
//! pub struct BlurOptions {
//!     /// The number of channels. Without a default it has to be given.
//!     #[setting(least = 1)]
//!     pub channels: usize,
//!     /// The length of the window.
//!     #[setting(default = 3, least = 1, alias = "window")]
//!     pub kernel_size: usize,
//! }
//!
//! let options = BlurOptions { kernel_size: 5, ..BlurOptions::new(8) };
//! assert!(options.check("Blur").is_ok());
//! let wrong = BlurOptions::new(0).check("Blur").unwrap_err().to_string();
//! assert_eq!(wrong, "Blur: channels is 0; it must be at least 1");
//! ```
//!
//! | on a field: `#[setting(...)]` | |
//! |---|---|
//! | `default`, `default = value` | it may be left out; the value may name settings before this one |
//! | `least = n` | numbers below are refused |
//! | `name = "pad"`, `alias = "padding"` | what Python and files call it instead of, or beside, the field's name |
//! | `quiet` | print-outs show it only where it is not the default |
//! | `skip = value` | the field is no setting and starts with this value |
//!
//! `#[settings(check = function)]` on the struct names a function `fn(&Self, layer: &'static str) -> Result<()>` for what concerns
//! several settings.

use std::fmt;

use netcl_autograd::{Error, Result};
pub use netcl_derive::Settings;

/// The value of a setting where its type is not known: in a file, or from Python.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
    /// Several values.
    List(Vec<Value>),
    /// Values by name.
    Map(Vec<(String, Value)>),
}

/// As Python writes it, and so as PyTorch prints it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("None"),
            Value::Bool(true) => f.write_str("True"),
            Value::Bool(false) => f.write_str("False"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Float(number) => write!(f, "{number}"),
            Value::Text(text) => write!(f, "'{text}'"),
            Value::List(values) => {
                f.write_str("(")?;
                for (i, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str(if values.len() == 1 { ",)" } else { ")" })
            }
            Value::Map(entries) => {
                f.write_str("{")?;
                for (i, (name, value)) in entries.iter().enumerate() {
                    write!(f, "{}'{name}': {value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("}")
            }
        }
    }
}

impl From<serde_json::Value> for Value {
    fn from(json: serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Value::None,
            serde_json::Value::Bool(value) => Value::Bool(value),
            serde_json::Value::Number(number) => {
                number.as_i64().map_or_else(|| Value::Float(number.as_f64().unwrap_or(f64::NAN)), Value::Int)
            }
            serde_json::Value::String(text) => match text.as_str() {
                "Infinity" => Value::Float(f64::INFINITY),
                "-Infinity" => Value::Float(f64::NEG_INFINITY),
                _ => Value::Text(text),
            },
            serde_json::Value::Array(values) => Value::List(values.into_iter().map(Value::from).collect()),
            serde_json::Value::Object(entries) => {
                Value::Map(entries.into_iter().map(|(name, value)| (name, value.into())).collect())
            }
        }
    }
}

impl From<Value> for serde_json::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::None => serde_json::Value::Null,
            Value::Bool(value) => value.into(),
            Value::Int(number) => number.into(),
            // JSON has no infinity.
            Value::Float(number) if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
            Value::Float(number) => number.into(),
            Value::Text(text) => text.into(),
            Value::List(values) => values.into_iter().map(serde_json::Value::from).collect(),
            Value::Map(entries) => {
                serde_json::Value::Object(entries.into_iter().map(|(name, value)| (name, value.into())).collect())
            }
        }
    }
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrong {
    /// It is of another type.
    Type,
    /// A number is below 0.
    Negative,
    /// Something that a sentence tells: `is 'ful'; use 'none' or 'full'`.
    Other(String),
}

/// A type that a setting can have.
pub trait Setting: Clone + PartialEq {
    /// What it takes, in words: `a whole number`.
    fn wanted() -> String;
    /// The setting of a value.
    fn read(value: &Value) -> std::result::Result<Self, Wrong>;
    /// The value of the setting.
    fn write(&self) -> Value;
    /// The smallest number in it.
    fn lowest(&self) -> Option<f64> {
        None
    }
}

impl Setting for bool {
    fn wanted() -> String {
        "True or False".to_owned()
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::Bool(value) => Ok(*value),
            Value::Int(0) => Ok(false),
            Value::Int(1) => Ok(true),
            _ => Err(Wrong::Type),
        }
    }
    fn write(&self) -> Value {
        Value::Bool(*self)
    }
}

impl Setting for usize {
    fn wanted() -> String {
        "a whole number".to_owned()
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::Int(number) => usize::try_from(*number).map_err(|_| Wrong::Negative),
            // Files of other origin hold 3.0.
            Value::Float(number) if number.fract() == 0.0 && (0.0..1e15).contains(number) => Ok(*number as usize),
            _ => Err(Wrong::Type),
        }
    }
    fn write(&self) -> Value {
        i64::try_from(*self).map_or(Value::Float(*self as f64), Value::Int)
    }
    fn lowest(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl Setting for isize {
    fn wanted() -> String {
        "a whole number".to_owned()
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::Int(number) => isize::try_from(*number).map_err(|_| Wrong::Type),
            _ => Err(Wrong::Type),
        }
    }
    fn write(&self) -> Value {
        Value::Int(*self as i64)
    }
    fn lowest(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl Setting for f64 {
    fn wanted() -> String {
        "a number".to_owned()
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::Float(number) => Ok(*number),
            Value::Int(number) => Ok(*number as f64),
            _ => Err(Wrong::Type),
        }
    }
    fn write(&self) -> Value {
        Value::Float(*self)
    }
    fn lowest(&self) -> Option<f64> {
        Some(*self)
    }
}

impl Setting for String {
    fn wanted() -> String {
        "a text".to_owned()
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::Text(text) => Ok(text.clone()),
            _ => Err(Wrong::Type),
        }
    }
    fn write(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl<T: Setting> Setting for Option<T> {
    fn wanted() -> String {
        format!("{} or None", T::wanted())
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        if *value == Value::None { Ok(None) } else { T::read(value).map(Some) }
    }
    fn write(&self) -> Value {
        self.as_ref().map_or(Value::None, T::write)
    }
    fn lowest(&self) -> Option<f64> {
        self.as_ref().and_then(T::lowest)
    }
}

/// A list of any length; one value stands for a list of one.
impl<T: Setting> Setting for Vec<T> {
    fn wanted() -> String {
        format!("{} or several", T::wanted())
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::List(values) => values.iter().map(T::read).collect(),
            one => Ok(vec![T::read(one)?]),
        }
    }
    fn write(&self) -> Value {
        Value::List(self.iter().map(T::write).collect())
    }
    fn lowest(&self) -> Option<f64> {
        self.iter().filter_map(T::lowest).reduce(f64::min)
    }
}

/// One value for each axis; a single one stands for all.
impl<T: Setting, const N: usize> Setting for [T; N] {
    fn wanted() -> String {
        if N == 1 { T::wanted() } else { format!("{} or {N} of them", T::wanted()) }
    }
    fn read(value: &Value) -> std::result::Result<Self, Wrong> {
        match value {
            Value::List(values) => {
                let values = values.iter().map(T::read).collect::<std::result::Result<Vec<_>, _>>()?;
                values.try_into().map_err(|_| Wrong::Type)
            }
            one => T::read(one).map(|one| std::array::from_fn(|_| one.clone())),
        }
    }
    fn write(&self) -> Value {
        Value::List(self.iter().map(T::write).collect())
    }
    fn lowest(&self) -> Option<f64> {
        self.iter().filter_map(T::lowest).reduce(f64::min)
    }
}

/// Makes an enum without fields a setting: a text, one of several.
///
/// ```
/// netcl_nn::choices! {
///     /// What is outside of an image.
///     pub enum Outside {
///         /// Zeros.
///         #[default]
///         Zeros = "zeros",
///         /// The border pixel, again and again.
///         Border = "border",
///     }
/// }
/// use netcl_nn::settings::{Setting, Value};
/// assert_eq!(Outside::read(&Value::Text("border".to_owned())), Ok(Outside::Border));
/// assert_eq!(Outside::Zeros.name(), "zeros");
/// ```
#[macro_export]
macro_rules! choices {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// What Python and files call it.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text),+
                }
            }
        }

        impl $crate::settings::Setting for $name {
            fn wanted() -> String {
                $crate::settings::one_of(&[$($text),+])
            }
            fn read(value: &$crate::settings::Value) -> ::std::result::Result<Self, $crate::settings::Wrong> {
                match value {
                    $($crate::settings::Value::Text(text) if text == $text => Ok($name::$variant),)+
                    $crate::settings::Value::Text(_) => Err($crate::settings::Wrong::Other(
                        format!("is {value}; use {}", <Self as $crate::settings::Setting>::wanted())
                    )),
                    _ => Err($crate::settings::Wrong::Type),
                }
            }
            fn write(&self) -> $crate::settings::Value {
                $crate::settings::Value::Text(self.name().to_owned())
            }
        }
    };
}

/// `'a', 'b' or 'c'`
#[doc(hidden)]
pub fn one_of(texts: &[&str]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| format!("'{text}'")).collect();
    match &quoted[..] {
        [all @ .., last] if !all.is_empty() => format!("{} or {last}", all.join(", ")),
        _ => quoted.concat(),
    }
}

/// The settings of a kind of layer; `#[derive(Settings)]` writes it.
pub trait Settings: Clone + Send + Sync + 'static {
    /// What Python and files call the settings, in the order of the constructor's arguments.
    const NAMES: &'static [&'static str];

    /// Settings from values by name.
    ///
    /// # Errors
    /// For a value that is missing, unknown or of the wrong type, and for what [`Settings::check`] refuses.
    fn read(layer: &'static str, given: Vec<(String, Value)>) -> Result<Self>;

    /// The values, in order.
    fn values(&self) -> Vec<(&'static str, Value)>;

    /// The values that print-outs show.
    fn shown(&self) -> Vec<(&'static str, Value)>;

    /// Changes one of them.
    ///
    /// # Errors
    /// As for [`Settings::read`]; nothing has changed then.
    fn set(&mut self, layer: &'static str, name: &str, value: &Value) -> Result<()>;

    /// Whether a layer can be made with them.
    ///
    /// # Errors
    /// For numbers that are too small, and what the layer itself refuses.
    fn check(&self, layer: &'static str) -> Result<()>;
}

/// Reads the settings of a layer one by one; for the code that `#[derive(Settings)]` writes.
#[doc(hidden)]
pub struct Reader {
    layer: &'static str,
    given: Vec<(String, Value)>,
}

impl Reader {
    pub fn new(layer: &'static str, given: Vec<(String, Value)>) -> Reader {
        Reader { layer, given }
    }

    /// The value under one of its names, the first of which is what errors call it.
    pub fn take<T: Setting>(&mut self, names: &[&str], default: Option<T>) -> Result<T> {
        let mut found: Option<(String, Value)> = None;
        for name in names {
            while let Some(at) = self.given.iter().position(|(given, _)| given == name) {
                let (name, value) = self.given.swap_remove(at);
                if let Some((other, _)) = &found {
                    let what = format!("{other} and {name} are two names of one argument; give one of them");
                    return Err(Error::argument(self.layer, what));
                }
                found = Some((name, value));
            }
        }
        match (found, default) {
            (Some((name, value)), _) => one(self.layer, &name, &value),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(Error::argument(self.layer, format!("{} is missing", names[0]))),
        }
    }

    /// Refuses what is left.
    pub fn finish(self, known: &[&str]) -> Result<()> {
        let Some((name, _)) = self.given.first() else { return Ok(()) };
        Err(unknown(self.layer, name, known))
    }
}

/// One setting of a value.
#[doc(hidden)]
pub fn one<T: Setting>(layer: &'static str, name: &str, value: &Value) -> Result<T> {
    T::read(value).map_err(|wrong| match wrong {
        Wrong::Type => Error::wrong_type(layer, format!("{name} is {}, not {value}", T::wanted())),
        Wrong::Negative => Error::argument(layer, format!("{name} is {value}; it must be at least 0")),
        Wrong::Other(what) => Error::argument(layer, format!("{name} {what}")),
    })
}

#[doc(hidden)]
pub fn unknown(layer: &'static str, name: &str, known: &[&str]) -> Error {
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Error::argument(layer, format!("there is no setting {name:?}; there are {known}"))
}

/// Refuses numbers below a bound.
#[doc(hidden)]
pub fn at_least<T: Setting>(layer: &'static str, name: &str, setting: &T, least: f64) -> Result<()> {
    match setting.lowest() {
        // Not a number is too small, too.
        Some(lowest) if lowest.is_nan() || lowest < least => {
            let value = match setting.write() {
                // One number that was given for all axes.
                Value::List(values) if values.windows(2).all(|pair| pair[0] == pair[1]) => values[0].clone(),
                value => value,
            };
            Err(Error::argument(layer, format!("{name} is {value}; it must be at least {least}")))
        }
        _ => Ok(()),
    }
}

/// Refuses what is no probability.
pub fn probability(layer: &'static str, name: &str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::argument(layer, format!("{name} is a probability from 0 to 1, not {p}")))
}

/// Refuses more layers than anybody can build: making them one by one would seem to hang.
pub fn depth(layer: &'static str, name: &str, count: usize) -> Result<()> {
    if count <= 10_000 {
        return Ok(());
    }
    Err(Error::argument(layer, format!("{name} is {count}; a model can have at most 10,000 layers of a kind")))
}

/// `name=value, name=value`
#[doc(hidden)]
pub fn text(values: &[(&'static str, Value)]) -> String {
    values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
}
