//! Areas in proportion to sizes, as square as possible (Bruls, Huizing and van Wijk, "Squarified Treemaps",
//! 2000).
//!
//! The sizes are placed in their order, in rows along the shorter side of the free area. A row takes another
//! size as long as the worst aspect ratio in the row does not get worse.

/// A part of an area.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Area {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// Divides an area whose width is `ratio` times its height. The sizes should be in descending order. The
/// first size of 0 and all sizes after it get no area. The results are in percent of the width and of the
/// height.
pub(crate) fn divide(sizes: &[f64], ratio: f64) -> Vec<Area> {
    let sizes: Vec<f64> = sizes.iter().copied().take_while(|size| *size > 0.0).collect();
    let total: f64 = sizes.iter().sum();
    let (width, height) = (100.0, 100.0 / ratio);
    let mut free = Area { x: 0.0, y: 0.0, width, height };
    let mut placed = Vec::with_capacity(sizes.len());
    let areas: Vec<f64> = sizes.iter().map(|size| size / total * width * height).collect();
    let mut rest = &areas[..];
    while !rest.is_empty() {
        let side = free.width.min(free.height);
        let mut count = 1;
        while count < rest.len() && worst(&rest[..count + 1], side) <= worst(&rest[..count], side) {
            count += 1;
        }
        let (row, more) = rest.split_at(count);
        place(row, &mut free, &mut placed);
        rest = more;
    }
    for area in &mut placed {
        area.y *= ratio;
        area.height *= ratio;
    }
    placed
}

/// The worst ratio of the sides of a row along a side of this length.
fn worst(row: &[f64], side: f64) -> f64 {
    let sum: f64 = row.iter().sum();
    let thickness = sum / side;
    let ratio = |area: &f64| {
        let length = area / thickness;
        (length / thickness).max(thickness / length)
    };
    row.iter().map(ratio).fold(0.0, f64::max)
}

/// Places a row along the shorter side of what is free.
fn place(row: &[f64], free: &mut Area, placed: &mut Vec<Area>) {
    let sum: f64 = row.iter().sum();
    let is_column = free.width >= free.height;
    let side = if is_column { free.height } else { free.width };
    let thickness = if side > 0.0 { sum / side } else { 0.0 };
    let mut at = 0.0;
    for area in row {
        let length = if thickness > 0.0 { area / thickness } else { 0.0 };
        placed.push(match is_column {
            true => Area { x: free.x, y: free.y + at, width: thickness, height: length },
            false => Area { x: free.x + at, y: free.y, width: length, height: thickness },
        });
        at += length;
    }
    if is_column {
        free.x += thickness;
        free.width = (free.width - thickness).max(0.0);
    } else {
        free.y += thickness;
        free.height = (free.height - thickness).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_in_proportion_and_fill_everything() {
        let sizes = [60.0, 60.0, 40.0, 30.0, 20.0, 10.0, 1.0, 0.0];
        let areas = divide(&sizes, 1.6);
        assert_eq!(areas.len(), 7);
        let total: f64 = areas.iter().map(|area| area.width * area.height).sum();
        assert!((total - 10_000.0).abs() < 1e-6, "{total}");
        for (area, size) in areas.iter().zip(sizes) {
            let share = area.width * area.height / 10_000.0;
            assert!((share - size / 221.0).abs() < 1e-9, "{area:?}");
            assert!(area.x >= 0.0 && area.y >= 0.0, "{area:?}");
            assert!(area.x + area.width <= 100.0 + 1e-9 && area.y + area.height <= 100.0 + 1e-9, "{area:?}");
        }
        for (at, one) in areas.iter().enumerate() {
            for other in &areas[at + 1..] {
                let apart = one.x + one.width <= other.x + 1e-9
                    || other.x + other.width <= one.x + 1e-9
                    || one.y + one.height <= other.y + 1e-9
                    || other.y + other.height <= one.y + 1e-9;
                assert!(apart, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn values_of_zero_have_no_areas() {
        assert_eq!(divide(&[], 1.0), []);
        assert_eq!(divide(&[0.0, 0.0], 1.0), []);
        assert_eq!(divide(&[3.0], 2.0), [Area { x: 0.0, y: 0.0, width: 100.0, height: 100.0 }]);
    }
}
