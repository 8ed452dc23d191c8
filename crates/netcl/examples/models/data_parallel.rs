//! Several devices train one network: each has a copy of it and a part of every batch.

use netcl::distributed::data_parallel::DataParallel;
use netcl::prelude::*;

fn network(queue: &Queue) -> netcl::Result<Sequential> {
    netcl::manual_seed(0); // the same weights wherever it is made
    Ok(sequential![Linear::new(queue, 2, 32)?, ReLU, Linear::new(queue, 32, 2)?])
}

/// Trains to say which of two numbers is larger, and gives the losses.
fn train(model: &dyn Module, queue: &Queue) -> netcl::Result<Vec<f64>> {
    netcl::manual_seed(1);
    let mut opt = SGD::new(model.parameters(), 0.5)?;
    let mut losses = Vec::new();
    for _step in 0..60 {
        let pairs = (Tensor::rand(queue, [64, 2])? - 0.5)?;
        let larger = pairs.select(1, 1)?.gt(&pairs.select(1, 0)?)?;
        let labels: Vec<i64> = larger.to_f64_vec()?.iter().map(|&larger| larger as i64).collect();
        let loss = F::cross_entropy(&model.forward(&pairs)?, &labels)?;
        loss.backward()?;
        opt.step()?;
        opt.zero_grad();
        losses.push(loss.item()?);
    }
    Ok(losses)
}

pub(crate) fn run(queue: &Queue) -> Result<(), Box<dyn std::error::Error>> {
    // Yours: manager().get("0")?.queue and manager().get("1")?.queue, the numbers of `netcl devices`.
    let devices = [queue.clone(), manager().cpu().queue];
    let alone = train(&network(queue)?, queue)?;
    let together = train(&DataParallel::new(&devices, network)?, queue)?;
    println!("losses on one device {:.4} -> {:.4}", alone[0], alone[alone.len() - 1]);
    println!("losses on {} devices {:.4} -> {:.4}", devices.len(), together[0], together[together.len() - 1]);
    // The same batches, so the same losses up to the order of sums.
    let same = alone.iter().zip(&together).all(|(a, b)| (a - b).abs() < 1e-3);
    if !same || together[together.len() - 1] > 0.3 {
        return Err("several devices should take the steps of one".into());
    }
    Ok(())
}
