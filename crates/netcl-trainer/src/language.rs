//! A trained language model, ready to write.

use std::path::Path;

use netcl_data::Tokenizer;
use netcl_nn::autograd::{IndexTensor, Queue};
use netcl_nn::{GPT, Module, Sampling};

use crate::error::{Error, Result};
use crate::task::{Loaded, Task, TextDescription, load_model};

/// A trained model that goes on with a text.
pub struct LanguageModel {
    model: Box<dyn Module>,
    description: TextDescription,
    tokenizer: Tokenizer,
}

impl LanguageModel {
    /// Builds the model of a file that `netcl train` wrote, on a device.
    ///
    /// # Errors
    /// As [`load_model`], and for a model of anything but texts.
    pub fn load(path: impl AsRef<Path>, queue: &Queue) -> Result<LanguageModel> {
        let path = path.as_ref();
        let Loaded { task, model, .. } = load_model(path, queue)?;
        match task {
            Task::Text(description) => {
                let tokenizer = description.tokenizer();
                Ok(LanguageModel { model, description, tokenizer })
            }
            task => {
                let what = format!(
                    "is a model of {}, not a language model; train one with: netcl train --model gpt --data TEXT",
                    task.unit().0
                );
                Err(Error::File { path: path.to_owned(), what })
            }
        }
    }

    /// What the file says of the model.
    pub fn description(&self) -> &TextDescription {
        &self.description
    }

    /// Goes on with a text by so many tokens. `each` gets every part as soon as it is known, and ends the text with `false`. Without a
    /// prompt the model begins after a line feed, or after its first character.
    ///
    /// # Errors
    /// If the prompt has a character that the model does not know, and for a sampling that cannot be.
    pub fn generate(&self, prompt: Prompt<'_>, sampling: Sampling, each: &mut dyn FnMut(&str) -> bool) -> Result<()> {
        generate(&*self.model, &self.tokenizer, prompt, sampling, each)
    }
}

/// What a language model goes on with, and how far.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'p> {
    /// The beginning.
    pub text: &'p str,
    /// How many tokens follow.
    pub tokens: usize,
}

pub(crate) fn generate(
    model: &dyn Module,
    tokenizer: &Tokenizer,
    prompt: Prompt<'_>,
    sampling: Sampling,
    each: &mut dyn FnMut(&str) -> bool,
) -> Result<()> {
    let (Some(model), Some(weight)) = (model.downcast_ref::<GPT>(), model.parameters().into_iter().next()) else {
        return Err(Error::setting("only models of the type GPT can generate text"));
    };
    let mut given = tokenizer.encode(prompt.text).map_err(|error| {
        Error::setting(format!("the prompt cannot be read: {error}. The model knows {}", known(tokenizer)))
    })?;
    if given.is_empty() {
        given = tokenizer.encode("\n").unwrap_or_else(|_| vec![0]);
    }
    let given: Vec<i64> = given.into_iter().map(i64::from).collect();
    let given = IndexTensor::from_host(weight.queue(), &given, [1, given.len()])?;
    let (mut open, mut failed) = (Vec::new(), None);
    model.generate_each(&given, prompt.tokens, sampling, &mut |drawn| {
        open.extend(drawn.iter().map(|&token| token as u32));
        match tokenizer.take_text(&mut open) {
            Ok(text) => text.is_empty() || each(&text),
            Err(error) => {
                failed = Some(error);
                false
            }
        }
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// The characters of the alphabet, for messages.
fn known(tokenizer: &Tokenizer) -> String {
    match tokenizer {
        Tokenizer::Bytes => "every byte".to_owned(),
        Tokenizer::Chars(tokenizer) => format!("{:?}", tokenizer.alphabet().iter().take(200).collect::<String>()),
    }
}
