//! What a report says, once, for every form it is written in.

use std::fmt::Write;

use crate::report::table::Table;

/// A piece of a report.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// A heading; 1 is the title.
    Heading(u8, String),
    /// A paragraph; words in backticks are code, between two asterisks bold.
    Text(String),
    /// A list.
    List(Vec<String>),
    /// A table.
    Table(Table),
    /// Commands.
    Code(String),
    /// A plot: its title, the file it is written to, and the drawing (SVG).
    Plot(String, String, String),
}

/// The blocks as Markdown; plots are links to their files.
#[must_use]
pub fn markdown(blocks: &[Block]) -> String {
    let mut text = String::new();
    for block in blocks {
        let _ = match block {
            Block::Heading(level, title) => {
                writeln!(text, "{} {title}\n", "#".repeat(usize::from(*level)))
            }
            Block::Text(paragraph) => writeln!(text, "{paragraph}\n"),
            Block::List(items) => {
                for item in items {
                    let _ = writeln!(text, "- {}", item.replace('\n', "\n  "));
                }
                writeln!(text)
            }
            Block::Table(table) => writeln!(text, "{}", table.render()),
            Block::Code(code) => writeln!(text, "```sh\n{code}\n```\n"),
            Block::Plot(title, file, _) => writeln!(text, "![{title}]({file})\n"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_its_markdown() {
        let mut table = Table::new(["variant", "loss"]);
        table.row(vec!["sync".to_owned(), "0.1".to_owned()]);
        let blocks = [
            Block::Heading(2, "Result".to_owned()),
            Block::Text("Some `words`.".to_owned()),
            Block::List(vec!["one".to_owned(), "two".to_owned()]),
            Block::Table(table),
            Block::Code("dnode join".to_owned()),
            Block::Plot("Loss".to_owned(), "loss.svg".to_owned(), String::new()),
        ];
        let text = markdown(&blocks);
        for part in [
            "## Result\n\n",
            "- one\n- two\n\n",
            "| sync",
            "```sh\ndnode join\n",
            "![Loss](loss.svg)",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
