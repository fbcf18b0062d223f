//! Reduces a list of steps that fails: leaves out shorter and shorter runs of steps as long as the rest still
//! fails (Zeller and Hildebrandt's ddmin, without testing the parts of complements).

/// The shortest list found, and its failure. `None` if the whole list does not fail.
pub(crate) fn shrink<T: Clone, D>(steps: &[T], fails: &dyn Fn(&[T]) -> Option<D>) -> Option<(Vec<T>, D)> {
    let mut outcome = fails(steps)?;
    let mut steps = steps.to_vec();
    let mut length = steps.len().div_ceil(2);
    loop {
        let mut smaller = false;
        // Begin at the end, because later steps rarely affect earlier ones.
        let mut end = steps.len();
        while end > 0 {
            let begin = end.saturating_sub(length);
            let fewer = [&steps[..begin], &steps[end..]].concat();
            if let Some(found) = fails(&fewer) {
                (steps, outcome, smaller) = (fewer, found, true);
            }
            end = begin;
        }
        match (length, smaller) {
            (1, false) => return Some((steps, outcome)),
            (1, true) => {}
            _ => length = length.div_ceil(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_necessary_steps_are_left() {
        let steps: Vec<u32> = (0..1000).collect();
        let fails = |steps: &[u32]| (steps.contains(&17) && steps.contains(&911)).then_some("both");
        assert_eq!(shrink(&steps, &fails), Some((vec![17, 911], "both")));
    }

    #[test]
    fn passing_steps_are_not_shrunk() {
        assert_eq!(shrink(&[1, 2, 3], &|_: &[i32]| None::<()>), None);
    }
}
