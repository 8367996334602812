// Package wayout decides how a machine forwards the packets of nodes and members beside whatever else it forwards for: a second site,
// Docker, Podman, virtual machines.
//
// The rules of a site concern its own links. A link of the machine is named in a site's set "switched" while nothing but sites needs
// forwarding there. It must never switch off what others may use: in doubt, forwarding stays on. It is pure, as its callers plan
// with it. Start with Seen.
package wayout

import (
	"slices"
	"strings"
)

// BridgeLinks is the pattern of the links that a node's networks go out by.
const BridgeLinks = "nmbr*"

// OfSite reports whether a link is a site's own: a host's link to its stand-in nodes, or a network's bridge.
func OfSite(link string) bool {
	return strings.HasPrefix(link, "nmu") || strings.HasPrefix(link, "nmbr") || link == "nmwg"
}

// Unasked is the chain for packets that come in over a link in "switched" and go to no site. Without the site they would not have been
// forwarded. Answers pass, since somebody else's packet left this way, and so does what somebody else's rule redirects.
const Unasked = `	chain unasked {
		ct state established,related accept
		ct status dnat accept
		drop
	}
`

// Seen is what a site sees of forwarding on its machine.
type Seen struct {
	// Uplinks are the links that default routes lead over.
	Uplinks []string
	// Forwarding are the links on which forwarding is on, without those of sites.
	Forwarding []string
	// Router: forwarding is on for the machine as a whole (net.ipv4.ip_forward). A site never sets that, so somebody else did.
	Router bool
	// Own are the links that this site's rules say were switched on for sites alone, Others those that other sites' rules say so.
	Own, Others []string
}

// Switched returns the links to name in the site's rules: uplinks on which nothing but sites needs forwarding.
func (s Seen) Switched() []string {
	if s.Router {
		return nil
	}
	var links []string
	for _, link := range s.Uplinks {
		if !slices.Contains(s.Forwarding, link) || slices.Contains(s.Own, link) || slices.Contains(s.Others, link) {
			links = append(links, link)
		}
	}
	slices.Sort(links)
	return slices.Compact(links)
}

// Off returns the links to switch off when the site's rules name these links from now on: those that nobody else may use. Forwarding on a
// link that sites have nothing to do with says that somebody else routes, and a way has two ends.
func (s Seen) Off(wanted []string) []string {
	var links []string
	for _, link := range s.Forwarding {
		switch {
		case slices.Contains(s.Own, link) && !slices.Contains(s.Others, link):
			if !slices.Contains(wanted, link) {
				links = append(links, link)
			}
		case !slices.Contains(s.Others, link) && !slices.Contains(s.Uplinks, link):
			return nil
		}
	}
	if s.Router {
		return nil
	}
	return links
}
