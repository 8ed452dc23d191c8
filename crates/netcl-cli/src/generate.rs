//! `netcl generate`: a trained language model goes on with a text.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use netcl::core::backend::opencl::shutdown;
use netcl::nn::Sampling;
use netcl::trainer::LanguageModel;
use netcl::trainer::language::Prompt;
use serde_json::json;

use crate::Verdict;
use crate::model_file::model_file;
use crate::output::{print_json, printable};
use crate::train::device;

#[derive(Args)]
pub(crate) struct Arguments {
    /// A run's folder or model.netcl file of `netcl train --model gpt`, or its checkpoint
    model: PathBuf,
    /// What the text begins with
    #[arg(long, default_value = "")]
    prompt: String,
    /// How many tokens follow: characters, or bytes
    #[arg(long, value_name = "N", default_value_t = 500)]
    tokens: usize,
    /// Below 1 prefers likely tokens, 0 always takes the likeliest
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Choose among so many of the likeliest tokens only
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Choose among the likeliest tokens that together have this probability only
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Above 1, tokens that the text has already are less likely
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f64,
    /// What decides the choices [default: another text each time]
    #[arg(long)]
    seed: Option<u64>,
    /// As for train
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,
    /// Print the text as JSON, with the tokens per second, once it is complete
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Verdict> {
    let file = model_file(&arguments.model)?;
    let model = LanguageModel::load(&file, &device(arguments.device.as_deref())?.queue)?;
    let &Arguments { ref prompt, tokens, temperature, top_k, top_p, repetition_penalty, seed, .. } = arguments;
    let fresh = || std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let seed = Some(seed.unwrap_or_else(fresh));
    let sampling = Sampling { temperature, top_k, top_p, repetition_penalty, seed };
    let (mut text, mut written) = (String::new(), Ok(()));
    // Written with the first part: the model may not know the prompt's characters, and an error begins its own line.
    let mut before = prompt.as_str();
    let mut show = |part: &str| {
        let part = [std::mem::take(&mut before), part].concat();
        let mut out = std::io::stdout().lock();
        written = out.write_all(printable(&part).as_bytes()).and_then(|()| out.flush());
        written.is_ok()
    };
    let start = Instant::now();
    model
        .generate(Prompt { text: prompt, tokens }, sampling, &mut |part| {
            text.push_str(part);
            (arguments.json || show(part)) && !shutdown::interrupted()
        })
        .with_context(|| format!("generating with {}", file.display()))?;
    if !arguments.json {
        show("\n");
        written?;
        return Ok(Verdict::Good);
    }
    let seconds = start.elapsed().as_secs_f64();
    print_json(&json!({
        "prompt": prompt, "text": text, "tokens": tokens, "seconds": seconds, "tokens_per_second": tokens as f64 / seconds.max(1e-9),
    }))?;
    Ok(Verdict::Good)
}
