package ufm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
)

const (
	membershipFull    = "full"
	membershipLimited = "limited"
)

// partition is one of UFM's.
type partition struct {
	members map[string]bool // by GUID, to whether limited
}

// parsePartitions reads UFM's answer for all partitions with their members: an object by key. What it does not understand is an error, never an
// absence. So is an answer without the management key 0x7fff, which UFM always has: a UFM that is starting has read nothing yet.
func parsePartitions(text []byte) (map[int]partition, error) {
	var answer map[string]struct {
		GUIDs *[]struct {
			GUID       string `json:"guid"`
			Membership string `json:"membership"`
		} `json:"guids"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&answer); err != nil {
		return nil, fmt.Errorf("UFM's list of partitions is not understood: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("UFM's list of partitions is followed by something else")
	}
	all := map[int]partition{}
	for name, p := range answer {
		key, err := parseKey(name)
		if err != nil {
			return nil, err
		}
		if _, twice := all[key]; twice {
			return nil, fmt.Errorf("UFM's list has partition %s twice", api.PKeyText(key))
		}
		if p.GUIDs == nil {
			return nil, fmt.Errorf("UFM's list has no members of partition %s, not even none", api.PKeyText(key))
		}
		members := map[string]bool{}
		for _, g := range *p.GUIDs {
			at := strings.TrimPrefix(strings.ToLower(g.GUID), "0x")
			_, err := partitions.GUID(at)
			if err != nil {
				return nil, fmt.Errorf("UFM's partition %s: member %q: %w", api.PKeyText(key), g.GUID, err)
			}
			if _, twice := members[at]; twice {
				return nil, fmt.Errorf("UFM's partition %s has member %s twice", api.PKeyText(key), at)
			}
			if g.Membership != membershipFull && g.Membership != membershipLimited {
				return nil, fmt.Errorf("UFM's partition %s: member %s has membership %q", api.PKeyText(key), at, g.Membership)
			}
			members[at] = g.Membership == membershipLimited
		}
		all[key] = partition{members}
	}
	if _, is := all[partitions.DefaultPKey]; !is {
		return nil, fmt.Errorf("UFM's list of partitions lacks %s, its own; it is not complete, perhaps because UFM is starting", api.PKeyText(partitions.DefaultPKey))
	}
	return all, nil
}

// parseKey reads a partition key such as "0x12". The membership bit is no part of it.
func parseKey(text string) (int, error) {
	digits, is := strings.CutPrefix(strings.ToLower(text), "0x")
	n, err := strconv.ParseUint(digits, 16, 16)
	if !is || err != nil {
		return 0, fmt.Errorf("UFM's list has %q, which is no partition key", text)
	}
	return int(n & 0x7fff), nil
}
