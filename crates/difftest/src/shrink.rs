//! Fewer steps that still differ: ever smaller runs of steps are left out, as long as a difference remains (Zeller and
//! Hildebrandt's ddmin, without the test of the complements' parts).

/// The smallest list found and what it leads to; `None` if not even the whole list leads to anything.
pub(crate) fn shrink<T: Clone, D>(steps: &[T], fails: &dyn Fn(&[T]) -> Option<D>) -> Option<(Vec<T>, D)> {
    let mut outcome = fails(steps)?;
    let mut steps = steps.to_vec();
    let mut run = steps.len().div_ceil(2);
    loop {
        let mut smaller = false;
        // From the end: later steps rarely matter to earlier ones.
        let mut end = steps.len();
        while end > 0 {
            let begin = end.saturating_sub(run);
            let fewer = [&steps[..begin], &steps[end..]].concat();
            if let Some(found) = fails(&fewer) {
                (steps, outcome, smaller) = (fewer, found, true);
            }
            end = begin;
        }
        match (run, smaller) {
            (1, false) => return Some((steps, outcome)),
            (1, true) => {}
            _ => run = run.div_ceil(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_steps_that_matter_are_left() {
        let steps: Vec<u32> = (0..1000).collect();
        let fails = |steps: &[u32]| (steps.contains(&17) && steps.contains(&911)).then_some("both");
        assert_eq!(shrink(&steps, &fails), Some((vec![17, 911], "both")));
    }

    #[test]
    fn what_does_not_fail_is_not_shrunk() {
        assert_eq!(shrink(&[1, 2, 3], &|_: &[i32]| None::<()>), None);
    }
}
