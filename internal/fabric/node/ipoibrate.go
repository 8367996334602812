package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// The kinds of hardware addresses that an underlay's link can have, as the netlink library names them: 6 octets (ARPHRD_ETHER), and 20 octets
// (ARPHRD_INFINIBAND, RFC 4391, section 9.1.1).
const (
	encapEthernet   = "ether"
	encapInfiniBand = "infiniband"
)

// sysfs is where the kernel shows devices.
const sysfs = "/sys"

// rateOf returns how many bits per second a link carries; 0: not known.
func rateOf(link netlink.Link) int64 {
	switch link.Attrs().EncapType {
	case encapEthernet:
		return speedOf(link)
	case encapInfiniBand:
		return infiniBandRate(sysfs, link.Attrs().Name)
	}
	return 0
}

// shortcutLink returns the name of a link that shortcuts can send by, "" for others: they write frames with addresses of 6 octets.
func shortcutLink(link *netlink.LinkAttrs) string {
	if link.EncapType != encapEthernet {
		return ""
	}
	return link.Name
}

// infiniBandRate returns the rate of the port below an IPoIB interface in bits per second, 0 where it is not known, as of a bond. It is read from the port:
// ethtool knows it of some drivers only (Documentation/ABI/stable/sysfs-class-infiniband).
func infiniBandRate(sys, netdev string) int64 {
	dir := filepath.Join(sys, "class/net", netdev)
	number, err := readNumber(filepath.Join(dir, "dev_port"))
	if err != nil {
		return 0
	}
	// The interface's number counts from 0, the port's from 1.
	found, err := filepath.Glob(filepath.Join(dir, "device/infiniband/*/ports", strconv.Itoa(number+1), "rate"))
	if err != nil || len(found) != 1 {
		return 0
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		return 0
	}
	return parseRate(string(text))
}

// parseRate reads what the kernel writes, such as "100 Gb/sec (4X EDR)" or "2.5 Gb/sec (1X SDR)", in bits per second.
func parseRate(text string) int64 {
	digits, _, found := strings.Cut(text, " Gb/sec")
	gigabits, err := strconv.ParseFloat(digits, 64)
	if !found || err != nil || gigabits <= 0 || gigabits > 1e6 {
		return 0
	}
	return int64(gigabits * 1e9)
}

func readNumber(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
