package resource

import (
	"maps"
	"strconv"
)

// Amounts is all that can be counted of what somebody holds or wants; the zero value is nothing.
type Amounts struct {
	Vector  Vector
	Devices Devices
}

// Unit is what an amount is of: a class, or a counter of devices.
type Unit struct {
	class   Class
	counter string // "": the class
}

// IsZero reports whether there is nothing of anything.
func (a Amounts) IsZero() bool { return a.Vector == Vector{} && len(a.Devices) == 0 }

// Equal reports whether both have as much of everything.
func (a Amounts) Equal(o Amounts) bool {
	return a.Vector == o.Vector && maps.Equal(a.Devices, o.Devices)
}

// Plus returns the sum.
func (a Amounts) Plus(o Amounts) Amounts {
	return Amounts{a.Vector.Plus(o.Vector), a.Devices.Plus(o.Devices)}
}

// Beyond returns how much more than o a has of everything: nothing where o has as much.
func (a Amounts) Beyond(o Amounts) Amounts {
	return Amounts{a.Vector.Beyond(o.Vector), a.Devices.Beyond(o.Devices)}
}

// Times returns n times a; nothing when n is not positive.
func (a Amounts) Times(n int) Amounts { return Amounts{a.Vector.Times(n), a.Devices.Times(n)} }

// Max returns the larger amount of everything.
func (a Amounts) Max(o Amounts) Amounts {
	return Amounts{a.Vector.Max(o.Vector), a.Devices.Max(o.Devices)}
}

// Of returns how much there is of a unit.
func (a Amounts) Of(u Unit) int64 {
	if u.counter != "" {
		return a.Devices[u.counter]
	}
	return a.Vector[u.class]
}

// String is the name of the unit: that of its bound in a quota.
func (u Unit) String() string {
	if u.counter != "" {
		return u.counter
	}
	return u.class.String()
}

// IsDevice reports whether the unit is a counter of devices.
func (u Unit) IsDevice() bool { return u.counter != "" }

// Number writes an amount without its unit: "8", "2GiB".
func (u Unit) Number(n int64) string {
	if u.counter != "" {
		return strconv.FormatInt(n, 10)
	}
	return u.class.Number(n)
}

// Text writes an amount for people: "8 cores", "2GiB of memory", "3 gpu/slices".
func (u Unit) Text(n int64) string {
	if u.counter != "" {
		return u.Number(n) + " " + u.counter
	}
	return u.class.Text(n)
}
