//! Einstein sums against sums written out in loops, and their gradients.

use std::collections::BTreeMap;

use netcl_autograd::Tensor;
use netcl_autograd::gradcheck::{Tolerance, gradcheck};
use netcl_autograd::ops::einsum::einsum;
use netcl_core::dtype::DType;

use crate::support::{cpu, devices, leaf};

/// The lengths of the letters in the tests.
fn length(letter: char) -> usize {
    match letter {
        'b' => 2,
        'i' => 3,
        'j' => 4,
        'k' => 5,
        _ => 2,
    }
}

/// The sum over all values of all letters, one by one.
fn by_loops(inputs: &[&str], output: &str, values: &[Vec<f64>]) -> Vec<f64> {
    let mut letters: Vec<char> = inputs.concat().chars().collect();
    letters.sort_unstable();
    letters.dedup();
    let at = |term: &str, index: &BTreeMap<char, usize>| {
        term.chars().fold(0, |flat, letter| flat * length(letter) + index[&letter])
    };
    let mut out = vec![0.0; output.chars().map(length).product()];
    let total: usize = letters.iter().map(|&l| length(l)).product();
    for mut flat in 0..total {
        let mut index = BTreeMap::new();
        for &letter in &letters {
            index.insert(letter, flat % length(letter));
            flat /= length(letter);
        }
        out[at(output, &index)] += inputs.iter().zip(values).map(|(term, v)| v[at(term, &index)]).product::<f64>();
    }
    out
}

#[test]
fn notations_mean_what_they_say() {
    let notations = [
        "ij,jk->ik",
        "ij->ji",
        "ij->",
        "ij->j",
        "ii->i",
        "ii->",
        "bij,bjk->bik",
        "i,j->ij",
        "ij,ij->ij",
        "ij,ij->",
        "bi,bj->bij",
        "ij,jk,k->i",
        "bij,kj->bki",
        "iji->j",
        "ij,kb->",
        "bii,ij->jb",
        "k,k",
        "ij,jk",
        "ji",
    ];
    for device in devices() {
        for notation in notations {
            let (left, right) = notation.split_once("->").unwrap_or((notation, ""));
            let terms: Vec<&str> = left.split(',').collect();
            let output = match notation {
                "ij,jk" => "ik",
                "ji" => "ij",
                _ => right,
            };
            let operands: Vec<Tensor> = terms
                .iter()
                .enumerate()
                .map(|(i, term)| {
                    let shape: Vec<usize> = term.chars().map(length).collect();
                    leaf(&device.queue, DType::F32, &shape, i as u64, (-1.0, 1.0))
                })
                .collect();
            let refs: Vec<&Tensor> = operands.iter().collect();
            let got = einsum(notation, &refs).unwrap_or_else(|error| panic!("{notation}: {error}"));
            let values: Vec<Vec<f64>> = operands.iter().map(|t| t.to_f64_vec().unwrap()).collect();
            let expected = by_loops(&terms, output, &values);
            assert_eq!(got.shape().to_vec(), output.chars().map(length).collect::<Vec<_>>(), "{notation}");
            for (g, e) in got.to_f64_vec().unwrap().iter().zip(expected) {
                assert!((g - e).abs() < 1e-5, "{notation} on {}: {g} instead of {e}", device.platform_name);
            }
        }
    }
}

#[test]
fn ellipses_broadcast_and_gradients_are_right() {
    let queue = cpu();
    let (a, b) =
        (leaf(&queue, DType::F64, &[2, 1, 3, 4], 1, (-1.0, 1.0)), leaf(&queue, DType::F64, &[5, 4, 2], 2, (-1.0, 1.0)));
    let both = einsum("...ij,...jk->...ik", &[&a, &b]).unwrap();
    assert_eq!(both.shape().to_vec(), [2, 5, 3, 2]);
    let expected = a.matmul(&b).unwrap().to_f64_vec().unwrap();
    assert!(both.to_f64_vec().unwrap().iter().zip(&expected).all(|(g, e)| (g - e).abs() < 1e-12));
    gradcheck(|t| einsum("...ij,...jk->...ik", t), &[&a, &b], Tolerance::default()).unwrap();
    let square = leaf(&queue, DType::F64, &[3, 3], 3, (-1.0, 1.0));
    gradcheck(|t| einsum("ii->i", t), &[&square], Tolerance::default()).unwrap();
    gradcheck(
        |t| einsum("ij,kj,k->i", &[t[0], t[0], t[1]]),
        &[&square, &leaf(&queue, DType::F64, &[3], 4, (-1.0, 1.0))],
        Tolerance::default(),
    )
    .unwrap();
}

#[test]
fn wrong_notations_are_explained() {
    let a = leaf(&cpu(), DType::F64, &[2, 3], 1, (-1.0, 1.0));
    for (notation, says) in [
        ("ij,jk->ik", "subscripts for 2 operands, but 1 given"),
        ("ijk->i", "are 3"),
        ("ii->i", "has length 3"),
        ("ij->k", "which no operand has"),
        ("ij->ii", "twice"),
        ("i1->i", "subscripts are letters"),
        ("...i...->i", "more than one ellipsis"),
    ] {
        let text = einsum(notation, &[&a]).unwrap_err().to_string();
        assert!(text.contains(says), "{notation}: {text}");
    }
}
