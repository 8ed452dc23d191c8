//! Modules as text: the tree that PyTorch prints, and a summary with the number of parameters.

use std::fmt;

use netcl_autograd::Tensor;

use crate::members::Member;
use crate::module::Module;
use crate::walk::{same, walk};

/// The tree of modules, as PyTorch prints it.
impl fmt::Display for dyn Module + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, line) in lines(self).iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "\n" })?;
            f.write_str(&line.text)?;
        }
        Ok(())
    }
}

impl fmt::Debug for dyn Module + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn lines(module: &dyn Module) -> Vec<SummaryLine> {
    fn write(module: &dyn Module, label: &str, depth: usize, lines: &mut Vec<SummaryLine>) {
        let mut children: Vec<(String, &dyn Module)> = Vec::new();
        module.visit(&mut |name, member| {
            if let Member::Child(child) = member {
                children.push((name.to_owned(), child));
            }
        });
        let indent = 2 * depth;
        let opening = format!("{:indent$}{label}{}({}", "", module.kind(), module.arguments());
        let parameters = Some(module.num_parameters());
        if children.is_empty() {
            lines.push(SummaryLine { text: opening + ")", parameters });
            return;
        }
        lines.push(SummaryLine { text: opening, parameters });
        for (name, child) in children {
            write(child, &format!("({name}): "), depth + 1, lines);
        }
        lines.push(SummaryLine { text: format!("{:indent$})", ""), parameters: None });
    }
    let mut lines = Vec::new();
    write(module, "", 0, &mut lines);
    lines
}

/// What [`Module::summary`] says: the tree of modules with the number of parameters of each, and totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The tree, line by line, as [`Display`](fmt::Display) of a module prints it.
    pub lines: Vec<SummaryLine>,
    /// The number of elements of all parameters, shared ones counted once.
    pub parameters: usize,
    /// The part of them that is trained; the rest is frozen.
    pub trainable: usize,
    /// The number of elements of all buffers.
    pub buffers: usize,
    /// The bytes of parameters and buffers.
    pub bytes: usize,
    /// Names of parameters that are another name for an earlier one, with that name.
    pub shared: Vec<(String, String)>,
}

/// A line of a [`Summary`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryLine {
    /// The text, indented.
    pub text: String,
    /// How many elements the parameters of this module and of those inside have; `None` on a closing line.
    pub parameters: Option<usize>,
}

pub(crate) fn summary(module: &dyn Module) -> Summary {
    let mut summary = Summary { lines: lines(module), ..Default::default() };
    let mut seen: Vec<(String, &Tensor)> = Vec::new();
    walk(module, "", &mut |name, member| {
        let (Member::Parameter(tensor) | Member::Buffer(tensor)) = member else { return };
        if let Some((first, _)) = seen.iter().find(|(_, known)| same(known, tensor)) {
            summary.shared.push((name.to_owned(), first.clone()));
            return;
        }
        seen.push((name.to_owned(), tensor));
        summary.bytes += tensor.size() * tensor.dtype().size();
        if let Member::Parameter(_) = member {
            summary.parameters += tensor.size();
            summary.trainable += if tensor.requires_grad() { tensor.size() } else { 0 };
        } else {
            summary.buffers += tensor.size();
        }
    });
    summary
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|line| line.text.chars().count()).max().unwrap_or(0);
        let count = |line: &SummaryLine| line.parameters.filter(|&n| n > 0).map(grouped).unwrap_or_default();
        let digits = self.lines.iter().map(|line| count(line).len()).max().unwrap_or(0);
        for line in &self.lines {
            let count = count(line);
            if count.is_empty() {
                writeln!(f, "{}", line.text)?;
            } else {
                writeln!(f, "{:width$}  {count:>digits$}", line.text)?;
            }
        }
        let (all, trained) = (grouped(self.parameters), grouped(self.trainable));
        let frozen = grouped(self.parameters - self.trainable);
        write!(f, "{all} parameters ({trained} trained, {frozen} frozen)")?;
        if self.buffers > 0 {
            write!(f, "; {} in buffers", grouped(self.buffers))?;
        }
        write!(f, "; {}", bytes(self.bytes))?;
        for (name, first) in &self.shared {
            write!(f, "\n{name} is {first}")?;
        }
        Ok(())
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn bytes(count: usize) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} bytes");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// Prints modules of concrete types like `dyn Module`.
macro_rules! print_as_module {
    ($($type:ty),* $(,)?) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self as &dyn $crate::Module, f)
            }
        }
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}
pub(crate) use print_as_module;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 12, 999, 1000, 1234567].map(grouped), ["0", "12", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1024, 1536 * 1024].map(bytes), ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB"]);
        assert_eq!(bytes(usize::MAX), "16777216.0 TiB");
    }
}
