//! A Markdown table with padded columns, readable in a terminal too.

/// A header and rows of the same width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<const WIDTH: usize>(header: [&str; WIDTH]) -> Self {
        Self::with_header(header.map(str::to_owned).to_vec())
    }

    /// A table without rows, its width known only at run time.
    pub fn with_header(header: Vec<String>) -> Self {
        Self { header, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the row is not as wide as the header.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.header.len(), "a row as wide as the table");
        self.rows.push(cells);
    }

    /// The names of the columns.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// The rows, each as wide as the header.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text; the first column is left-aligned, the others are right-aligned.
    pub fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].chars().count());
                let head = self.header[column].chars().count();
                cells.chain([head, 3]).max().unwrap_or(3)
            })
            .collect();
        let rule = widths.iter().enumerate().map(|(column, &width)| {
            if column == 0 { "-".repeat(width) } else { "-".repeat(width - 1) + ":" }
        });
        let rule: Vec<String> = rule.collect();
        [&self.header, &rule]
            .into_iter()
            .chain(&self.rows)
            .map(|cells| line(cells, &widths))
            .collect()
    }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (column, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        text += "| ";
        if column == 0 {
            text += &format!("{cell:<width$}");
        } else {
            text += &format!("{cell:>width$}");
        }
        text.push(' ');
    }
    text + "|\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_padded_and_aligned() {
        let mut table = Table::new(["variant", "loss"]);
        table.row(vec!["gossip-outer".to_owned(), "0.5".to_owned()]);
        let want = "| variant      | loss |\n| ------------ | ---: |\n| gossip-outer |  0.5 |\n";
        assert_eq!(table.render(), want);
    }
}
