//! A perceptron with one hidden layer, its gradients, and Adam.

use crate::data::{Image, PIXELS};
use crate::random::Random;

const HIDDEN: usize = 128;
const DIGITS: usize = 10;
pub const LAYERS: usize = 2;

/// Weights and biases of both layers; a weight is a row for each input.
const SIZES: [usize; 4] = [PIXELS * HIDDEN, HIDDEN, HIDDEN * DIGITS, DIGITS];

pub struct Network {
    pub parameters: Vec<Vec<f32>>,
    adam: Vec<(Vec<f32>, Vec<f32>)>,
    steps: i32,
}

/// The gradients of the parameters, and nothing else: they are what travels.
pub struct Gradients(Vec<Vec<f32>>);

impl Gradients {
    pub fn new() -> Gradients {
        Gradients(SIZES.iter().map(|&size| vec![0.0; size]).collect())
    }
}

/// What the forward pass leaves for the backward pass: for each image its pixels, its hidden layer, and the derivative of the
/// loss by its outputs.
pub struct Errors<'a> {
    images: Vec<(&'a Image, [f32; HIDDEN], [f32; DIGITS])>,
    pub loss: f32,
}

impl Network {
    pub fn new(random: &mut Random) -> Network {
        let scales = [(6.0 / PIXELS as f32).sqrt(), 0.0, (6.0 / HIDDEN as f32).sqrt(), 0.0];
        let parameters = SIZES.iter().zip(scales);
        Network {
            parameters: parameters
                .map(|(&size, scale)| (0..size).map(|_| scale * random.uniform()).collect())
                .collect(),
            adam: SIZES.iter().map(|&size| (vec![0.0; size], vec![0.0; size])).collect(),
            steps: 0,
        }
    }

    fn outputs(&self, pixels: &[f32; PIXELS]) -> ([f32; HIDDEN], [f32; DIGITS]) {
        let (mut hidden, mut outputs) = ([0.0; HIDDEN], [0.0; DIGITS]);
        affine(pixels, &self.parameters[0], &self.parameters[1], &mut hidden);
        hidden.iter_mut().for_each(|value| *value = value.max(0.0));
        affine(&hidden, &self.parameters[2], &self.parameters[3], &mut outputs);
        (hidden, outputs)
    }

    /// The mean cross entropy over a batch, and what its gradients follow from.
    pub fn forward<'a>(&self, batch: impl ExactSizeIterator<Item = &'a Image>) -> Errors<'a> {
        let count = batch.len() as f32;
        let mut errors = Errors { images: Vec::with_capacity(batch.len()), loss: 0.0 };
        for image in batch {
            let (hidden, mut outputs) = self.outputs(&image.pixels);
            let largest = outputs.iter().copied().fold(f32::MIN, f32::max);
            outputs.iter_mut().for_each(|value| *value = (*value - largest).exp());
            let sum: f32 = outputs.iter().sum();
            errors.loss -= (outputs[image.digit] / sum).ln() / count;
            outputs.iter_mut().for_each(|value| *value /= sum * count);
            outputs[image.digit] -= 1.0 / count;
            errors.images.push((image, hidden, outputs));
        }
        errors
    }

    /// The backward pass, layer by layer.
    pub fn backward<'a, 'g>(&'a self, errors: &'a Errors<'a>, gradients: &'g mut Gradients) -> Backward<'a, 'g> {
        gradients.0.iter_mut().for_each(|gradient| gradient.fill(0.0));
        let mut layers = gradients.0.chunks_mut(2);
        let first = layers.next().unwrap();
        Backward { network: self, errors, layers: vec![(0, first), (2, layers.next().unwrap())] }
    }

    /// One step of Adam.
    pub fn step(&mut self, gradients: &Gradients, rate: f32) {
        self.steps += 1;
        let (first, second) = (1.0 - 0.9_f32.powi(self.steps), 1.0 - 0.999_f32.powi(self.steps));
        for ((parameter, gradient), (means, squares)) in
            self.parameters.iter_mut().zip(&gradients.0).zip(&mut self.adam)
        {
            for i in 0..parameter.len() {
                means[i] = 0.9 * means[i] + 0.1 * gradient[i];
                squares[i] = 0.999 * squares[i] + 0.001 * gradient[i] * gradient[i];
                parameter[i] -= rate * (means[i] / first) / ((squares[i] / second).sqrt() + 1e-8);
            }
        }
    }

    pub fn accuracy(&self, images: &[Image]) -> f64 {
        let correct = images.iter().filter(|image| {
            let outputs = self.outputs(&image.pixels).1;
            let best = (0..DIGITS).max_by(|&a, &b| outputs[a].total_cmp(&outputs[b]));
            best == Some(image.digit)
        });
        correct.count() as f64 / images.len() as f64
    }
}

/// The backward pass, from the last layer to the first.
pub struct Backward<'a, 'g> {
    network: &'a Network,
    errors: &'a Errors<'a>,
    layers: Vec<(usize, &'g mut [Vec<f32>])>, // the index of its first parameter, and its gradients
}

impl<'a, 'g> Backward<'a, 'g> {
    /// Computes the gradients of one more layer; gives them with the indices of their parameters.
    pub fn next_layer(&mut self) -> impl Iterator<Item = (usize, &'g mut [f32])> {
        let (first, gradients) = self.layers.pop().expect("a layer is left");
        let (weights, biases) = gradients.split_at_mut(1);
        let (weight, bias) = (&mut weights[0], &mut biases[0]);
        for (image, hidden, errors) in &self.errors.images {
            if first == 2 {
                add_outer(hidden, errors, weight, bias);
                continue;
            }
            let mut hidden_errors = [0.0; HIDDEN];
            for (i, row) in self.network.parameters[2].chunks_exact(DIGITS).enumerate() {
                if hidden[i] > 0.0 {
                    hidden_errors[i] = row.iter().zip(errors).map(|(weight, error)| weight * error).sum();
                }
            }
            add_outer(&image.pixels, &hidden_errors, weight, bias);
        }
        [(first, &mut weight[..]), (first + 1, &mut bias[..])].into_iter()
    }
}

fn affine(input: &[f32], weight: &[f32], bias: &[f32], output: &mut [f32]) {
    output.copy_from_slice(bias);
    for (&value, row) in input.iter().zip(weight.chunks_exact(output.len())) {
        output.iter_mut().zip(row).for_each(|(sum, weight)| *sum += value * weight);
    }
}

fn add_outer(input: &[f32], errors: &[f32], weight: &mut [f32], bias: &mut [f32]) {
    for (&value, row) in input.iter().zip(weight.chunks_exact_mut(errors.len())) {
        row.iter_mut().zip(errors).for_each(|(sum, error)| *sum += value * error);
    }
    bias.iter_mut().zip(errors).for_each(|(sum, error)| *sum += error);
}
