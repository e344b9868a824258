//! The report as one HTML page that needs nothing else: tables that scroll on narrow screens, plots
//! inside.

use std::fmt::Write;

use crate::report::document::Block;
use crate::report::table::Table;

/// Most headings that the list at the top has.
const CONTENTS_MAX: usize = 60;

const STYLE: &str = "
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff;
       max-width: 1320px; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.7rem; line-height: 1.25; }
h2 { font-size: 1.3rem; margin-top: 2.2rem; border-bottom: 1px solid #d0d0d0; }
h3 { font-size: 1.05rem; }
code { font: 0.9em ui-monospace, monospace; background: #f2f2f2; padding: 0 0.2em; }
pre { background: #f6f6f6; padding: 0.7rem; overflow-x: auto; }
pre code { background: none; padding: 0; }
li { margin: 0.25rem 0; overflow-wrap: anywhere; }
nav ul { columns: 18rem; padding-left: 1.2rem; }
.wide { overflow-x: auto; margin: 0.8rem 0; border: 1px solid #e0e0e0; }
table { border-collapse: collapse; font-size: 0.84rem; width: 100%; }
th, td { padding: 0.3rem 0.45rem; text-align: right; white-space: nowrap;
         font-variant-numeric: tabular-nums; }
th { background: #f2f2f2; vertical-align: bottom; white-space: normal; min-width: 4rem; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff;
                                 border-right: 1px solid #e0e0e0; }
th:first-child { background: #f2f2f2; }
tr + tr td { border-top: 1px solid #ececec; }
figure { margin: 1rem 0; overflow-x: auto; border: 1px solid #e0e0e0; }
figure svg { display: block; width: 100%; min-width: 640px; height: auto; }
";

/// The page.
#[must_use]
pub fn page(blocks: &[Block]) -> String {
    let title = headings(blocks, 1).next().map_or("Experiment", |(_, title)| title);
    let title = escape(title);
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n"
    );
    for (index, block) in blocks.iter().enumerate() {
        write_block(&mut text, index, block);
        if matches!(block, Block::Heading(1, _)) {
            text += &contents(blocks);
        }
    }
    text + "</html>\n"
}

/// Headings of a level, and their places among the blocks.
fn headings(blocks: &[Block], wanted: u8) -> impl Iterator<Item = (usize, &str)> {
    blocks.iter().enumerate().filter_map(move |(index, block)| {
        let Block::Heading(level, title) = block else { return None };
        (*level == wanted).then_some((index, title.as_str()))
    })
}

/// Links to the sections.
fn contents(blocks: &[Block]) -> String {
    let mut text = "<nav><ul>\n".to_owned();
    for (index, title) in headings(blocks, 2).take(CONTENTS_MAX) {
        let _ = writeln!(text, "<li><a href=\"#s{index}\">{}</a></li>", inline(title));
    }
    text + "</ul></nav>\n"
}

fn write_block(text: &mut String, index: usize, block: &Block) {
    let _ = match block {
        Block::Heading(level, title) => {
            writeln!(text, "<h{level} id=\"s{index}\">{}</h{level}>", inline(title))
        }
        Block::Text(paragraph) => writeln!(text, "<p>{}</p>", inline(paragraph)),
        Block::List(items) => {
            let items: String =
                items.iter().map(|item| format!("<li>{}</li>\n", inline(item))).collect();
            writeln!(text, "<ul>\n{items}</ul>")
        }
        Block::Table(table) => write_table(text, table),
        Block::Code(code) => writeln!(text, "<pre><code>{}</code></pre>", escape(code)),
        Block::Plot(title, _, svg) => {
            writeln!(text, "<figure aria-label=\"{}\">{svg}</figure>", escape(title))
        }
    };
}

fn write_table(text: &mut String, table: &Table) -> std::fmt::Result {
    let cases = |cases: &[String], tag: &str| -> String {
        cases.iter().map(|case| format!("<{tag}>{}</{tag}>", inline(case))).collect()
    };
    write!(text, "<div class=\"wide\"><table>\n<tr>{}</tr>\n", cases(table.header(), "th"))?;
    for row in table.rows() {
        writeln!(text, "<tr>{}</tr>", cases(row, "td"))?;
    }
    writeln!(text, "</table></div>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Text with code between backticks and bold between two asterisks.
fn inline(text: &str) -> String {
    let mut html = String::new();
    for (index, part) in escape(text).split('`').enumerate() {
        if index % 2 == 1 {
            let _ = write!(html, "<code>{part}</code>");
            continue;
        }
        for (index, part) in part.split("**").enumerate() {
            let _ = if index % 2 == 1 {
                write!(html, "<strong>{part}</strong>")
            } else {
                write!(html, "{part}")
            };
        }
    }
    html.replace('\n', "<br>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_everything_inside_and_escapes_it() {
        let mut table = Table::new(["variant", "loss"]);
        table.row(vec!["a<b".to_owned(), "0.1".to_owned()]);
        let blocks = [
            Block::Heading(1, "A & B".to_owned()),
            Block::Heading(2, "Result".to_owned()),
            Block::Text("**bold** `co<de>`".to_owned()),
            Block::Table(table),
            Block::Plot("Loss".to_owned(), "loss.svg".to_owned(), "<svg></svg>".to_owned()),
        ];
        let html = page(&blocks);
        for part in [
            "<title>A &amp; B</title>",
            "<a href=\"#s1\">Result</a>",
            "<strong>bold</strong> <code>co&lt;de&gt;</code>",
            "<td>a&lt;b</td>",
            "<figure aria-label=\"Loss\"><svg></svg></figure>",
        ] {
            assert!(html.contains(part), "{part} is missing in\n{html}");
        }
        assert!(!html.contains("loss.svg") && !html.contains("http"), "nothing is loaded");
    }
}
