package resource

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// String is the name of the class, that of its bound in a quota.
func (c Class) String() string {
	switch c {
	case Clusters:
		return "clusters"
	case Members:
		return "members"
	case Cores:
		return "cores"
	case Memory:
		return "memory"
	case Disk:
		return "disk"
	case HugePages2MiB:
		return "huge_pages_2mib"
	case HugePages1GiB:
		return "huge_pages_1gib"
	case Storage:
		return "storage"
	case Uplink:
		return "uplink"
	default:
		return fmt.Sprintf("class %d", uint8(c))
	}
}

// Number writes an amount without its class: "8", "2GiB".
func (c Class) Number(n int64) string {
	switch {
	case c == Uplink:
		return api.Rate(n).String()
	case c >= Memory:
		return bytesText(n)
	}
	return strconv.FormatInt(n, 10)
}

// bytesText writes bytes for people. What a node measured, such as the free space on its disk, is rounded down to tenths: "13.4GiB".
func bytesText(n int64) string {
	const mib, gib = 1 << 20, 1 << 30
	switch {
	case n < mib || n%mib == 0:
		return api.Bytes(n).String()
	case n < gib:
		return fmt.Sprintf("%d.%dMiB", n/mib, n%mib*10/mib)
	default:
		return fmt.Sprintf("%d.%dGiB", n/gib, n%gib*10/gib)
	}
}

// Text writes an amount for people: "1 core", "8 cores", "2GiB of memory".
func (c Class) Text(n int64) string {
	name := c.String()
	switch {
	case c == Memory:
		return c.Number(n) + " of memory"
	case c == Disk:
		return c.Number(n) + " of disk"
	case c == HugePages2MiB:
		return c.Number(n) + " of huge pages of 2MiB"
	case c == HugePages1GiB:
		return c.Number(n) + " of huge pages of 1GiB"
	case c == Storage:
		return c.Number(n) + " of storage"
	case c == Uplink:
		return c.Number(n) + " of the uplink"
	case n == 1:
		return "1 " + strings.TrimSuffix(name, "s")
	default:
		return c.Number(n) + " " + name
	}
}

// String lists the amounts that are not 0, in the order of the classes: "2 members, 8 cores, 2GiB of memory".
func (v Vector) String() string {
	var parts []string
	for c, n := range v {
		if n != 0 {
			parts = append(parts, Class(c).Text(n))
		}
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
