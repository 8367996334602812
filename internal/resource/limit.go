package resource

// Limit bounds a vector class by class. 0 is no limit.
type Limit Vector

// Exceeded lists the classes whose limit would be passed by add beside what is used. A class of which nothing is added does not count,
// even when more of it is used than the limit allows: that request does not make it worse.
func (l Limit) Exceeded(used, add Vector) []Class {
	var over []Class
	sum := used.Plus(add)
	for c := range l {
		if l[c] > 0 && add[c] > 0 && sum[c] > l[c] {
			over = append(over, Class(c))
		}
	}
	return over
}
