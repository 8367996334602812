package nodespace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// egressRules let nodes out, and nothing in: the only address of the host that a node reaches is the one in the underlay, and
// no packet that is not an answer comes to a node. Links in "switched" had forwarding off before.
const egressRules = `table inet %[1]s {
	set switched {
		type ifname
		%[4]s
	}
	chain input {
		type filter hook input priority -10; policy accept;
		iifname "%[2]s" ip daddr != %[3]s drop
	}
	chain forward {
		type filter hook forward priority -10; policy accept;
		iifname @switched oifname != "%[2]s" oifname != @switched drop
		iifname "%[2]s" ip daddr { 127.0.0.0/8, 169.254.0.0/16, 198.18.0.0/15 } drop
		iifname "%[2]s" accept
		oifname "%[2]s" ct state established,related accept
		oifname "%[2]s" drop
	}
	chain postrouting {
		type nat hook postrouting priority 90; policy accept;
		iifname "%[2]s" oifname != "%[2]s" masquerade
	}
}
`

// table is the name of the host's table of this site.
func (s *site) table() string { return "nearmetal_" + s.id }

// ensureEgress opens or closes the nodes' way out through the host.
func (s *site) ensureEgress(ctx context.Context, wanted bool, u underlay) error {
	if !wanted {
		return s.removeEgress(ctx)
	}
	return s.host.Do(func() error {
		before, exists, err := s.switchedLinks(ctx)
		if err != nil {
			return err
		}
		uplinks, err := defaultLinks()
		if err != nil {
			return err
		}
		var switched []string
		for _, link := range uplinks {
			if slices.Contains(before, link) || !forwards(link) {
				switched = append(switched, link)
			}
		}
		elements := ""
		if len(switched) > 0 {
			elements = fmt.Sprintf(`elements = { "%s" }`, strings.Join(switched, `", "`))
		}
		script := fmt.Sprintf(egressRules, s.table(), s.hostLink(), u.prefix.Addr(), elements)
		if exists {
			script = "delete table inet " + s.table() + "\n" + script
		}
		if _, err := nft(ctx, script, "-f", "-"); err != nil {
			return err
		}
		for _, link := range append(switched, s.hostLink()) {
			if err := setSysctl("ipv4/conf/"+link+"/forwarding", "1"); err != nil {
				return err
			}
		}
		return nil
	})
}

// removeEgress closes the nodes' way out and leaves forwarding as it was before.
func (s *site) removeEgress(ctx context.Context) error {
	return s.host.Do(func() error {
		switched, exists, err := s.switchedLinks(ctx)
		if err != nil || !exists {
			return err
		}
		for _, link := range append(switched, s.hostLink()) {
			if err := setSysctl("ipv4/conf/"+link+"/forwarding", "0"); err != nil {
				return err
			}
		}
		_, err = nft(ctx, "delete table inet "+s.table()+"\n", "-f", "-")
		return err
	})
}

// elementList is what nft prints of a set's elements.
var elementList = regexp.MustCompile(`(?s)elements = \{(.*?)\}`)

// switchedLinks are the links on which forwarding was switched on here, and whether the table is there at all.
func (s *site) switchedLinks(ctx context.Context) ([]string, bool, error) {
	tables, err := nft(ctx, "", "list", "tables", "inet")
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, false, nil // without nft there is no table
		}
		return nil, false, err
	}
	if !slices.Contains(strings.Split(tables, "\n"), "table inet "+s.table()) {
		return nil, false, nil
	}
	set, err := nft(ctx, "", "list", "set", "inet", s.table(), "switched")
	if err != nil {
		return nil, true, err
	}
	m := elementList.FindStringSubmatch(set)
	if m == nil {
		return nil, true, nil
	}
	var links []string
	for e := range strings.SplitSeq(m[1], ",") {
		links = append(links, strings.Trim(strings.TrimSpace(e), `"`))
	}
	return links, true, nil
}

// defaultLinks are the names of the links that IPv4 default routes of the thread's namespace lead over.
func defaultLinks() ([]string, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_DST)
	if err != nil {
		return nil, fmt.Errorf("reading default routes: %w", err)
	}
	var links []string
	for _, r := range routes {
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err == nil && !slices.Contains(links, link.Attrs().Name) {
			links = append(links, link.Attrs().Name)
		}
	}
	return links, nil
}

// forwards tells whether packets that come in over a link are forwarded.
func forwards(link string) bool {
	content, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link + "/forwarding")
	return err == nil && strings.TrimSpace(string(content)) == "1"
}

// nft runs nft(8) in the network namespace of the calling thread.
func nft(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nft", args...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("nft is not found: install the package nftables, and have /usr/sbin in PATH: %w", err)
		}
		return "", fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
