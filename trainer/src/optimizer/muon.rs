//! Muon: momentum whose matrices are made orthogonal before they move the weights.

use crate::kernel::{Blend, Matrix, MatrixMut};

/// Coefficients of one iteration, `a X + b (X Xᵀ) X + c (X Xᵀ)² X`: five of them take every singular
/// value from `[0.01, 1]` to about `[0.7, 1.2]`.
///
/// Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
pub const COEFFICIENTS: (f32, f32, f32) = (3.4445, -4.7750, 2.0315);
/// Iterations, as there.
pub const ITERATIONS: usize = 5;
/// Added to the length of a matrix before it is divided by that.
pub const LENGTH_MIN: f32 = 1e-7;
/// Root mean square of the elements of an update per unit of learning rate: that of a usual update of
/// AdamW, so that both take the same learning rate and weight decay.
///
/// Source: Liu et al. 2025, "Muon is scalable for LLM training", arXiv 2502.16982, equation 4.
pub const UPDATE_RMS: f32 = 0.2;

/// What an update of a matrix needs besides its slices: [`direction`] of all of it, then [`apply`].
///
/// `m ← μ m + g ; O = orthogonal(g + μ m) ; x ← x − 0.2 √max(rows, columns) η O − η λ x`. Source: Jordan et
/// al. 2024, with the scale of Liu et al. 2025 ([`UPDATE_RMS`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MuonRule {
    pub(super) learning_rate: f32,
    pub(super) momentum: f32,
    pub(super) weight_decay: f32,
    /// Factor of the gradient (clipping).
    pub(super) gradient_scale: f32,
    /// Rows and columns of the matrix, row major.
    pub(super) shape: (usize, usize),
}

/// `m ← μ m + g ; u ← g + μ m`, of a part of the matrix.
pub(super) fn direction(gradient: &[f32], momentum: &mut [f32], out: &mut [f32], rule: MuonRule) {
    for ((u, &g), m) in out.iter_mut().zip(gradient).zip(momentum) {
        let g = g * rule.gradient_scale;
        *m = rule.momentum * *m + g;
        *u = g + rule.momentum * *m;
    }
}

/// Moves the matrix by the `direction` of all of it.
pub(super) fn apply(parameters: &mut [f32], mut direction: Vec<f32>, rule: MuonRule) {
    orthogonalize(&mut direction, rule.shape);
    let keep = 1.0 - rule.learning_rate * rule.weight_decay;
    let rate = rule.learning_rate * scale(rule.shape);
    for (x, u) in parameters.iter_mut().zip(direction) {
        *x = keep * *x - rate * u;
    }
}

/// Numbers that an update needs for a while beside the matrix and its momentum.
pub(super) fn numbers((rows, columns): (usize, usize)) -> usize {
    2 * rows * columns + 2 * rows.min(columns).pow(2)
}

/// What an orthogonal matrix of this shape is multiplied by, so that the root mean square of its
/// elements is [`UPDATE_RMS`].
#[must_use]
pub fn scale((rows, columns): (usize, usize)) -> f32 {
    UPDATE_RMS * (rows.max(columns) as f32).sqrt()
}

/// Replaces a matrix by one of about the same singular vectors whose singular values are about 1
/// (Newton–Schulz iterations, in f32). Zeros stay zeros.
fn orthogonalize(matrix: &mut [f32], (rows, columns): (usize, usize)) {
    let squares: f64 = matrix.iter().map(|value| f64::from(*value).powi(2)).sum();
    let factor = 1.0 / (squares.sqrt() as f32 + LENGTH_MIN);
    matrix.iter_mut().for_each(|value| *value *= factor);
    let small = rows.min(columns);
    let (mut gram, mut square) = (vec![0.0; small * small], vec![0.0; small * small]);
    let mut moved = vec![0.0; matrix.len()];
    let (a, b, c) = COEFFICIENTS;
    for _ in 0..ITERATIONS {
        let x = Matrix::new(matrix, rows, columns);
        // The smaller of the two products of the matrix with itself.
        let (left, right) = if rows <= columns { (x, x.transposed()) } else { (x.transposed(), x) };
        MatrixMut::new(&mut gram, small, small).product(left, right, Blend::Replace);
        let of_gram = Matrix::new(&gram, small, small);
        MatrixMut::new(&mut square, small, small).product(of_gram, of_gram, Blend::Replace);
        square.iter_mut().zip(&gram).for_each(|(square, gram)| *square = c * *square + b * *gram);
        let polynomial = Matrix::new(&square, small, small);
        let (left, right) = if rows <= columns { (polynomial, x) } else { (x, polynomial) };
        MatrixMut::new(&mut moved, rows, columns).product(left, right, Blend::Replace);
        matrix.iter_mut().zip(&moved).for_each(|(x, moved)| *x = a * *x + moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waves(rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|i| ((i * i % 97) as f32 / 97.0 - 0.5) * 3.0).collect()
    }

    /// `Xᵀ X` or `X Xᵀ`, whichever is smaller.
    fn gram(x: &[f32], (rows, columns): (usize, usize)) -> Vec<f32> {
        let small = rows.min(columns);
        let mut gram = vec![0.0; small * small];
        let x = Matrix::new(x, rows, columns);
        let (left, right) = if rows <= columns { (x, x.transposed()) } else { (x.transposed(), x) };
        MatrixMut::new(&mut gram, small, small).product(left, right, Blend::Replace);
        gram
    }

    #[test]
    fn a_matrix_becomes_nearly_orthogonal_whatever_its_shape() {
        for shape in [(8, 8), (4, 32), (32, 4), (1, 7), (7, 1)] {
            let mut x = waves(shape.0, shape.1);
            orthogonalize(&mut x, shape);
            let small = shape.0.min(shape.1);
            let gram = gram(&x, shape);
            for (index, value) in gram.iter().enumerate() {
                let diagonal = index % small == index / small;
                // Singular values end between 0.7 and 1.2, so their squares between 0.49 and 1.44.
                let legal = if diagonal { 0.4..1.6 } else { -0.5..0.5 };
                assert!(legal.contains(value), "{shape:?} {index}: {value}");
            }
        }
    }

    #[test]
    fn the_scale_of_the_gradient_does_not_matter_and_zeros_stay() {
        let (mut one, mut other) = (waves(6, 9), waves(6, 9));
        other.iter_mut().for_each(|value| *value *= 1e4);
        orthogonalize(&mut one, (6, 9));
        orthogonalize(&mut other, (6, 9));
        assert!(one.iter().zip(&other).all(|(one, other)| (one - other).abs() < 1e-3));
        let mut zeros = vec![0.0; 54];
        orthogonalize(&mut zeros, (6, 9));
        assert!(zeros.iter().all(|value| *value == 0.0));
    }

    #[test]
    fn an_update_has_the_root_mean_square_that_it_should() {
        let rule = MuonRule {
            learning_rate: 0.5,
            momentum: 0.0,
            weight_decay: 0.1,
            gradient_scale: 1.0,
            shape: (16, 48),
        };
        let gradient = waves(16, 48);
        let (mut x, mut m) = (vec![2.0; 16 * 48], vec![0.0; 16 * 48]);
        let mut u = vec![0.0; 16 * 48];
        direction(&gradient, &mut m, &mut u, rule);
        apply(&mut x, u, rule);
        // x = 2 · (1 − 0.05) − 0.5 · u, where u has a root mean square of about 0.2.
        let moved: f32 = x.iter().map(|x| ((1.9 - x) / 0.5).powi(2)).sum();
        let rms = (moved / x.len() as f32).sqrt();
        assert!((0.14..0.25).contains(&rms), "{rms}");
        assert_eq!(m, gradient);
    }
}
