package nodespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/nftables"
	"github.com/nearmetal/nearmetal/internal/wayout"
)

// egressRules let nodes out, and nothing in: the only address of the host that a node reaches is the one in the underlay, and
// only answers come to a node. Packets of others pass, unless they come over a link in "switched"; see package wayout. Pairs in
// "same" are bridged packets, which pass here when br_netfilter is loaded.
const egressRules = `table inet %[1]s {
	set switched {
		type ifname
		%[4]s
	}
	set same {
		type ifname . ifname
		%[5]s
	}
	chain input {
		type filter hook input priority -10; policy accept;
		iifname "%[2]s" ip daddr != %[3]s drop
	}
	chain forward {
		type filter hook forward priority -10; policy accept;
		iifname . oifname @same accept
		iifname @switched oifname != "nmu*" oifname != "nmbr*" goto unasked
		iifname "%[2]s" ip daddr { 127.0.0.0/8, 169.254.0.0/16, 198.18.0.0/15 } drop
		iifname "%[2]s" accept
		oifname "%[2]s" ct state established,related accept
		oifname "%[2]s" drop
	}
` + wayout.Unasked + `	chain postrouting {
		type nat hook postrouting priority 90; policy accept;
		iifname "%[2]s" oifname != "%[2]s" masquerade
	}
}
`

// table is the name of the host's table of this site.
func (s *site) table() string { return "nearmetal_" + s.id }

// egressSeen is the host as far as the nodes' way out goes.
type egressSeen struct {
	wayout.Seen
	listing wayout.Listing
	docker  wayout.Docker
	// open: the site's table exists. nodes: forwarding is on for the host's link to the nodes.
	open, nodes bool
}

// ensureEgress opens or closes the nodes' way out through the host.
func (s *site) ensureEgress(ctx context.Context, wanted bool, u underlay) error {
	if !wanted {
		return s.removeEgress(ctx)
	}
	seen, err := s.openEgress(ctx, u.prefix.Addr(), true)
	if advice := wayout.Advice(seen.Seen, seen.listing, s.hostLink()); err == nil && advice != "" {
		s.log.WarnContext(ctx, "nodes may be unable to reach the outside", "why", advice)
	}
	return err
}

// openEgress writes the site's rules if they differ from what this host needs, or in any case anew.
func (s *site) openEgress(ctx context.Context, host netip.Addr, anew bool) (seen egressSeen, err error) {
	err = s.onHost(func() error {
		if _, err := netlink.LinkByName(s.hostLink()); err != nil {
			return fmt.Errorf("the host's link to the nodes %s: %w", s.hostLink(), err)
		}
		if seen, err = s.seeEgress(ctx); err != nil {
			return err
		}
		switched := seen.Switched()
		if err := switchForwarding(seen.Off(switched), false); err != nil {
			return err
		}
		script := seen.docker.Script(s.hostLink(), true)
		if anew || !seen.open || !slices.Equal(switched, seen.Own) {
			if seen.open {
				script += "delete table inet " + s.table() + "\n"
			}
			script += s.rules(host, switched)
		}
		if script != "" {
			if err := nftables.Load(ctx, script); err != nil {
				return err
			}
		}
		failpoint.Hit("nodespace.after-egress-rules")
		return switchForwarding(append(switched, s.hostLink()), true)
	})
	return seen, err
}

// rules renders the site's table.
func (s *site) rules(host netip.Addr, switched []string) string {
	links, pairs := "", ""
	if len(switched) > 0 {
		var same []string
		for _, link := range switched {
			same = append(same, fmt.Sprintf("%q . %q", link, link))
		}
		links = fmt.Sprintf(`elements = { "%s" }`, strings.Join(switched, `", "`))
		pairs = fmt.Sprintf("elements = { %s }", strings.Join(same, ", "))
	}
	return fmt.Sprintf(egressRules, s.table(), s.hostLink(), host, links, pairs)
}

// removeEgress closes the nodes' way out, and switches forwarding off where it was off before and nobody else may use it.
func (s *site) removeEgress(ctx context.Context) error {
	return s.onHost(func() error {
		seen, err := s.seeEgress(ctx)
		if errors.Is(err, exec.ErrNotFound) {
			return nil // without nft there is no table
		}
		if err != nil || !seen.open {
			return err
		}
		if err := switchForwarding(append(seen.Off(nil), s.hostLink()), false); err != nil {
			return err
		}
		failpoint.Hit("nodespace.after-forwarding-off")
		return nftables.Load(ctx, seen.docker.Script(s.hostLink(), false)+"delete table inet "+s.table()+"\n")
	})
}

// onHost calls f in the host's network namespace, under the lock that all sites there share.
func (s *site) onHost(f func() error) error {
	release, err := s.host.Lock()
	if err != nil {
		return err
	}
	defer release()
	return s.host.Do(f)
}

// seeEgress reads rules, routes and forwarding in the thread's namespace.
func (s *site) seeEgress(ctx context.Context) (egressSeen, error) {
	var seen egressSeen
	text, err := nftables.List(ctx)
	if err != nil {
		return seen, err
	}
	seen.listing = wayout.ParseListing(text)
	seen.Own, seen.open = seen.listing.Switched["inet "+s.table()]
	seen.Others = seen.listing.Others("inet " + s.table())
	if seen.listing.Docker {
		chain, err := nftables.Run(ctx, "", wayout.DockerChain()...)
		if err != nil {
			return seen, err
		}
		seen.docker = wayout.ParseDocker(chain, s.hostLink())
	}
	return seen, s.seeForwarding(&seen)
}

// seeForwarding reads routes and forwarding in the thread's namespace.
func (s *site) seeForwarding(seen *egressSeen) (err error) {
	if seen.Uplinks, err = defaultLinks(); err != nil {
		return err
	}
	links, router, err := netns.Forwarding()
	if err != nil {
		return err
	}
	seen.Router = router
	seen.nodes = slices.Contains(links, s.hostLink())
	seen.Forwarding = slices.DeleteFunc(links, wayout.OfSite)
	return nil
}

func switchForwarding(links []string, on bool) error {
	for _, link := range links {
		err := netns.SetForwarding(link, on)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// KeepEgress keeps the nodes' way out open until ctx ends: whoever starts Docker or a firewall beside a site, or ends it, changes what the
// site needs. It looks every so often, and reads rules only when something has changed.
func KeepEgress(ctx context.Context, cfg Config, spaces Spaces, every time.Duration) error {
	s, err := open(cfg.StateDir, cfg.Logger)
	if err != nil {
		return err
	}
	defer s.close()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := s.egressSign()
		if err == nil && now == last {
			continue
		}
		seen, err := s.openEgress(ctx, spaces.Host, false)
		if err != nil {
			if ctx.Err() == nil {
				s.log.WarnContext(ctx, "the nodes' egress can't be inspected", "error", err)
			}
			continue
		}
		if advice := wayout.Advice(seen.Seen, seen.listing, s.hostLink()); advice != "" {
			s.log.WarnContext(ctx, "nodes may be unable to reach the outside", "why", advice)
		}
		last = now
	}
}

// egressSign differs from an earlier one when the host's rules, default routes or forwarding have changed.
func (s *site) egressSign() (sign string, err error) {
	err = s.host.Do(func() error {
		generation, err := nftables.Generation()
		if err != nil {
			return err
		}
		var seen egressSeen
		err = s.seeForwarding(&seen)
		sign = fmt.Sprint(generation, seen.Seen, seen.nodes)
		return err
	})
	return sign, err
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
