//! Reduces a list of steps that fails: leaves out shorter and shorter runs of steps as long as the rest still
//! fails (Zeller and Hildebrandt's ddmin, without testing the parts of complements).

/// The shortest list found, and its failure. `None` if the whole list does not fail.
///
/// # Errors
/// The first one of `fails`: then it is unknown whether a list fails.
pub(crate) fn shrink<T: Clone, D, E>(
    steps: &[T],
    fails: impl Fn(&[T]) -> Result<Option<D>, E>,
) -> Result<Option<(Vec<T>, D)>, E> {
    let Some(mut outcome) = fails(steps)? else { return Ok(None) };
    let mut steps = steps.to_vec();
    let mut length = steps.len().div_ceil(2);
    loop {
        let mut smaller = false;
        // Begin at the end, because later steps rarely affect earlier ones.
        let mut end = steps.len();
        while end > 0 {
            let begin = end.saturating_sub(length);
            let fewer = [&steps[..begin], &steps[end..]].concat();
            if let Some(found) = fails(&fewer)? {
                (steps, outcome, smaller) = (fewer, found, true);
            }
            end = begin;
        }
        match (length, smaller) {
            (1, false) => return Ok(Some((steps, outcome))),
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
        let fails = |steps: &[u32]| -> Result<_, ()> {
            Ok((steps.contains(&17) && steps.contains(&911)).then_some("both"))
        };
        assert_eq!(shrink(&steps, fails), Ok(Some((vec![17, 911], "both"))));
    }

    #[test]
    fn passing_steps_are_not_shrunk() {
        assert_eq!(shrink(&[1, 2, 3], |_: &[i32]| Ok::<_, ()>(None::<()>)), Ok(None));
    }

    #[test]
    fn failure_to_run_steps_is_an_error() {
        let fails = |steps: &[i32]| if steps.len() < 3 { Err("no space") } else { Ok(Some(())) };
        assert_eq!(shrink(&[1, 2, 3], fails), Err("no space"));
    }
}
