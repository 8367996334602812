package ufm

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

// change is one request that changes something.
type change struct {
	method, path string
	body         any
}

// newPartition is the body that makes a partition without members.
type newPartition struct {
	PKey   string `json:"pkey"`
	Index0 bool   `json:"index0"`
	// IPOverIB is written always: UFM takes true when it is absent.
	IPOverIB bool `json:"ip_over_ib"`
	// MTULimit is in KiB, 2 or 4.
	MTULimit     int `json:"mtu_limit,omitempty"`
	ServiceLevel int `json:"service_level"`
	// RateLimit is in Gbit/s.
	RateLimit float64 `json:"rate_limit,omitempty"`
}

// newMembers is the body that adds members, or changes the membership of those that are there.
type newMembers struct {
	PKey     string   `json:"pkey"`
	Index0   bool     `json:"index0"`
	IPOverIB bool     `json:"ip_over_ib"`
	GUIDs    []string `json:"guids"`
	// Memberships are "full" or "limited", one for each GUID.
	Memberships []string `json:"memberships"`
}

const (
	partitionsPath = "/resources/pkeys"
	// guidsARemoval keeps the path of a request short: a GUID takes 17 characters of it.
	guidsARemoval = 64
	// guidsAnAddition keeps the time of one request bounded.
	guidsAnAddition = 256
)

// plan returns the requests that make the networks the only ones in a range of keys. Removals come first, so that no port has one network more for a
// moment than it has room for.
func plan(present map[int]partition, networks []site.Network, first, last int) (changes []change) {
	wanted := map[int]site.Network{}
	for _, n := range networks {
		wanted[n.Number] = n
	}
	for _, key := range slices.Sorted(maps.Keys(present)) {
		if key < first || key > last {
			continue
		}
		n, ok := wanted[key]
		if !ok || len(n.Ports) == 0 {
			changes = append(changes, change{method: http.MethodDelete, path: partitionsPath + "/" + keyText(key)})
			continue
		}
		keep := map[string]bool{}
		for _, p := range n.Ports {
			keep[p.At] = true
		}
		var gone []string
		for _, at := range slices.Sorted(maps.Keys(present[key].members)) {
			if !keep[at] {
				gone = append(gone, at)
			}
		}
		for some := range slices.Chunk(gone, guidsARemoval) {
			changes = append(changes, change{method: http.MethodDelete, path: partitionsPath + "/" + keyText(key) + "/guids/" + strings.Join(some, ",")})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if n := wanted[key]; len(n.Ports) > 0 {
			changes = append(changes, additions(present, n)...)
		}
	}
	return changes
}

// additions make a partition that is absent, and bring in members that are absent or have another membership.
func additions(present map[int]partition, n site.Network) (changes []change) {
	key := keyText(n.Number)
	if _, is := present[n.Number]; !is {
		changes = append(changes, change{http.MethodPost, partitionsPath + "/add", newPartition{
			PKey: key, IPOverIB: n.Partition.IPoIB, MTULimit: n.Partition.MTUBytes / 1024, ServiceLevel: n.Partition.ServiceLevel,
			RateLimit: float64(n.Partition.RateGbps),
		}})
	}
	var missing []site.Port
	for _, p := range n.Ports {
		if limited, is := present[n.Number].members[p.At]; !is || limited != p.Limited {
			missing = append(missing, p)
		}
	}
	for some := range slices.Chunk(missing, guidsAnAddition) {
		body := newMembers{PKey: key, IPOverIB: n.Partition.IPoIB}
		for _, p := range some {
			membership := membershipFull
			if p.Limited {
				membership = membershipLimited
			}
			body.GUIDs, body.Memberships = append(body.GUIDs, p.At), append(body.Memberships, membership)
		}
		changes = append(changes, change{http.MethodPost, partitionsPath + "/", body})
	}
	return changes
}

// keyText is a key as UFM writes it.
func keyText(key int) string { return fmt.Sprintf("0x%x", key) }

func (c change) encode() ([]byte, error) {
	if c.body == nil {
		return nil, nil
	}
	return json.Marshal(c.body)
}
