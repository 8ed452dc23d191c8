//! The report of a run: one HTML file that needs nothing else.

mod chart;

use std::fmt::Write;

use netcl_data::transforms::Transform;
use netcl_data::{ImageSplits, Picture, digits};
use netcl_nn::Module;

use crate::error::Result;
use crate::evaluate::Evaluation;
use crate::history::History;
use crate::settings::Settings;
use chart::{Series, Unit, chart, smoothed};

/// What the report is about.
pub struct Content<'c> {
    /// What the run was made of.
    pub settings: &'c Settings,
    /// The images.
    pub data: &'c ImageSplits,
    /// The model.
    pub model: &'c dyn Module,
    /// The number of its parameters.
    pub parameters: usize,
    /// What it was trained on.
    pub device: &'c str,
    /// What happened.
    pub history: &'c History,
    /// The final test.
    pub evaluation: &'c Evaluation,
}

/// As many wrong guesses are shown, the surest first.
const SHOWN: usize = 18;
/// A table of more classes than this is too large to look at.
const MOST_CLASSES: usize = 30;

/// The style of our pages.
pub const STYLE: &str = include_str!("page.css");

/// The whole page.
pub fn html(content: &Content<'_>) -> Result<String> {
    let Content { settings, data, history, evaluation, .. } = *content;
    let accuracy = evaluation.accuracy() * 100.0;
    let title = format!("{} on {}", settings.network.name(), escaped(&data.name));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}: {accuracy:.2} %</title><style>\n{}</style></head>\n\
         <body><main><h1>{title}</h1><p class=\"lead\">Trained by netcl {} on {}.</p>\n",
        STYLE,
        env!("CARGO_PKG_VERSION"),
        escaped(content.device)
    );
    page.push_str(&tiles(content));
    page.push_str("<h2>Curves</h2>\n");
    page.push_str(&curves(history));
    page.push_str("<h2>Settings</h2>\n");
    page.push_str(&settings_table(content));
    if data.classes.len() <= MOST_CLASSES {
        page.push_str("<h2>Confusion</h2>\n");
        page.push_str(&confusion(data, evaluation));
    }
    if !evaluation.mistakes.is_empty() {
        page.push_str("<h2>Mistakes it was surest of</h2>\n");
        page.push_str(&mistakes(data, evaluation)?);
    }
    let _ =
        write!(page, "<h2>Model</h2>\n<div class=\"card\"><pre>{}</pre></div>\n", escaped(&content.model.to_string()));
    if data.name == "digits" {
        let _ = writeln!(page, "<footer>Data: {}.</footer>", escaped(digits::ATTRIBUTION));
    }
    page.push_str("</main></body></html>\n");
    Ok(page)
}

fn tiles(content: &Content<'_>) -> String {
    let Content { data, history, evaluation, .. } = *content;
    let seconds = history.seconds();
    let images = (history.epochs.len() * data.train.len()) as f64;
    let tiles = [
        (format!("{:.2} %", evaluation.accuracy() * 100.0), "test accuracy"),
        (format!("{:.4}", evaluation.loss), "test loss"),
        (duration(seconds), "training time"),
        (format!("{:.0}", images / seconds.max(1e-9)), "images per second"),
        (thousands(content.parameters), "parameters"),
    ];
    let tiles = tiles.map(|(value, name)| format!("<div class=\"tile\"><b>{value}</b><span>{name}</span></div>"));
    format!("<div class=\"tiles\">{}</div>\n", tiles.concat())
}

fn curves(history: &History) -> String {
    let steps_per_epoch = history.epochs.first().map_or(1, |epoch| epoch.steps.max(1)) as f64;
    let at = |step: usize| step as f64 / steps_per_epoch;
    let epochs = history.epochs.len().max(1) as f64;
    let losses: Vec<(f64, f64)> = history.steps.iter().map(|step| (at(step.step), step.loss)).collect();
    let rates = history.steps.iter().map(|step| (at(step.step), step.lr)).collect();
    let by_epoch = |value: fn(&crate::history::Epoch) -> f64| {
        history.epochs.iter().map(|epoch| (epoch.epoch as f64, value(epoch))).collect::<Vec<_>>()
    };
    let line = |name, class, points| Series { name, class, faint: false, dots: false, points };
    let dots = |name, class, points| Series { name, class, faint: false, dots: true, points };
    let smooth = smoothed(&losses);
    let loss = [
        Series { name: "batch", class: "first", faint: true, dots: false, points: losses },
        line("training", "first", smooth),
        dots("test", "second", by_epoch(|epoch| epoch.test_loss)),
    ];
    let accuracy = [
        dots("training", "first", by_epoch(|epoch| epoch.accuracy)),
        dots("test", "second", by_epoch(|epoch| epoch.test_accuracy)),
    ];
    [
        chart("Loss", Unit::Plain, epochs, &loss),
        chart("Accuracy", Unit::Percent, epochs, &accuracy),
        chart("Learning rate", Unit::Plain, epochs, &[line("learning rate", "first", rates)]),
    ]
    .concat()
}

/// One of the changes that [`Settings::changes`] names, in words.
fn described(change: &Transform, width: usize) -> String {
    match change {
        Transform::Crop { padding, .. } => format!("shifts of up to {padding} pixels"),
        Transform::HorizontalFlip { .. } => "mirroring".to_owned(),
        Transform::Affine { degrees, translate, scale, .. } => format!(
            "shifts of up to {:.0} pixels, turns of up to {degrees} degrees, scaling by up to {:.0} %",
            translate[0] * width as f64,
            (scale.1 - 1.0) * 100.0
        ),
        other => format!("{other:?}"),
    }
}

fn settings_table(content: &Content<'_>) -> String {
    let Content { settings, data, history, .. } = *content;
    let [channels, height, width] = data.train.shape();
    let changes: Vec<String> =
        settings.changes(data.train.shape()).iter().map(|change| described(change, width)).collect();
    let changes = if changes.is_empty() { "none".to_owned() } else { changes.join(", ") };
    let rows = [
        ("data", data.name.clone()),
        ("training images", thousands(data.train.len())),
        ("test images", thousands(data.test.len())),
        ("image", format!("{channels} x {height} x {width}")),
        ("network", settings.network.name().to_owned()),
        ("epochs", history.epochs.len().to_string()),
        ("batch size", settings.batch_size.to_string()),
        ("optimizer", format!("AdamW, weight decay {}", settings.weight_decay)),
        ("learning rate", format!("one cycle up to {}", settings.lr)),
        ("label smoothing", settings.label_smoothing.to_string()),
        ("random changes of images", changes),
        ("seed", settings.seed.to_string()),
        ("device", content.device.to_owned()),
    ];
    let rows: String =
        rows.iter().map(|(name, value)| format!("<tr><th>{name}</th><td>{}</td></tr>", escaped(value))).collect();
    format!("<div class=\"card\"><table class=\"rows\">{rows}</table></div>\n")
}

fn confusion(data: &ImageSplits, evaluation: &Evaluation) -> String {
    let names: Vec<String> = data.classes.iter().map(|name| escaped(name)).collect();
    let mut table = String::from("<div class=\"card scroll\"><table class=\"confusion\"><thead><tr><th></th>");
    for name in &names {
        let _ = write!(table, "<th>{name}</th>");
    }
    table.push_str("</tr></thead><tbody>");
    for (class, row) in evaluation.confusion.iter().enumerate() {
        let total = row.iter().sum::<usize>().max(1) as f64;
        let _ = write!(table, "<tr><th>{}</th>", names[class]);
        for (guess, &count) in row.iter().enumerate() {
            // Rare mistakes must be seen as well: the root lifts them.
            let share = (count as f64 / total).sqrt();
            let colour = if guess == class { "good" } else { "bad" };
            let text = if count == 0 { String::new() } else { count.to_string() };
            let strength = share * if guess == class { 0.55 } else { 0.9 };
            let (is, as_what) = (&names[class], &names[guess]);
            let _ = write!(
                table,
                "<td style=\"background:rgba(var(--{colour}),{strength:.2})\" title=\"{is} taken for {as_what}: {count}\">{text}</td>"
            );
        }
        table.push_str("</tr>");
    }
    table.push_str("</tbody></table><p class=\"lead\" style=\"margin:10px 0 0\">Rows: what it is. Columns: what it was taken for.</p></div>\n");
    table
}

fn mistakes(data: &ImageSplits, evaluation: &Evaluation) -> Result<String> {
    let mut surest = evaluation.mistakes.clone();
    surest.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    let [_, height, width] = data.test.shape();
    let mut grid = String::from("<div class=\"wrong\">");
    for mistake in surest.iter().take(SHOWN) {
        // The first channel: colours are shown as grey.
        let pixels = &data.test.image(mistake.index)[..height * width];
        let png = data_uri(&Picture::from_pixels(width, height, pixels)?.to_png()?);
        let (is, guess) = (escaped(&data.classes[mistake.label]), escaped(&data.classes[mistake.guess]));
        let _ = write!(
            grid,
            "<div><img src=\"{png}\" alt=\"test image {}\"><b>{is}</b>, not {guess} ({:.0} %)</div>",
            mistake.index,
            mistake.probability * 100.0
        );
    }
    grid.push_str("</div>\n");
    Ok(grid)
}

/// Text for HTML.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// `1,234,567`.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12.3 s` or `4 min 5 s`.
fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{:.0} min {:.0} s", (seconds / 60.0).floor(), (seconds % 60.0).floor())
    }
}

/// A PNG file's content as the source of an `<img>`, so that a page needs no other file.
pub fn data_uri(png: &[u8]) -> String {
    format!("data:image/png;base64,{}", base64(png))
}

/// RFC 4648, padded.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = (0..3).fold(0u32, |group, i| group << 8 | u32::from(chunk.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in cases {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }

    #[test]
    fn numbers_and_names_are_readable() {
        assert_eq!(
            (thousands(7), thousands(1234), thousands(11_173_962)),
            ("7".into(), "1,234".into(), "11,173,962".into())
        );
        assert_eq!((duration(3.21), duration(125.0)), ("3.2 s".into(), "2 min 5 s".into()));
        assert_eq!(escaped("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
