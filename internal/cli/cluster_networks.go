package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// flaggedNetworks returns the networks that flags name, NETWORK or NETWORK=ADDRESS, with what other flags say of the ports there.
func flaggedNetworks(f createFlags) ([]api.GroupNetwork, error) {
	var networks []api.GroupNetwork
	for _, text := range f.networks {
		name, address, fixed := strings.Cut(text, "=")
		if fixed && address == "" {
			return nil, usage("--network %q has no address; write NETWORK=ADDRESS, or NETWORK for any address", text)
		}
		networks = append(networks, api.GroupNetwork{Name: name, Address: address})
	}
	for _, flag := range []struct {
		name, form string
		given      []string
		set        func(n *api.GroupNetwork, value string) error
	}{
		{"--security-group", "NETWORK=GROUP, such as project/lab=web", f.guards, addSecurityGroup},
		{"--rate", "NETWORK=MIN-MAX, such as project/lab=200Mbit-1Gbit", f.rates, setRates},
		{"--dscp", "NETWORK=DSCP, such as project/lab=10", f.marks, setDSCP},
	} {
		for _, text := range flag.given {
			network, value, ok := strings.Cut(text, "=")
			if !ok || network == "" || value == "" {
				return nil, usage("%s %q is not %s", flag.name, text, flag.form)
			}
			i := slices.IndexFunc(networks, func(n api.GroupNetwork) bool { return n.Name == network })
			if i < 0 {
				return nil, usage("%s %s: its network is not given: --network %s", flag.name, text, network)
			}
			if err := flag.set(&networks[i], value); err != nil {
				return nil, usage("%s %s: %v", flag.name, text, err)
			}
		}
	}
	return networks, flaggedInterfaces(f, networks)
}

// flaggedInterfaces adds what flags say of the kinds of ports.
func flaggedInterfaces(f createFlags, networks []api.GroupNetwork) error {
	network := func(flag, text, name string) (*api.GroupNetwork, error) {
		i := slices.IndexFunc(networks, func(n api.GroupNetwork) bool { return n.Name == name })
		if i < 0 {
			return nil, usage("%s %s: its network is not given: --network %s", flag, text, name)
		}
		return &networks[i], nil
	}
	for _, text := range f.interfaces {
		head, words, chosen := strings.Cut(text, ",") // a PCI address has colons, too
		at := strings.LastIndex(head, ":")
		if at < 0 {
			continue // of the cluster's own network
		}
		if at < 1 || at == len(head)-1 {
			return usage("--interface %q is not KIND, such as vf, nor NETWORK:KIND, such as project/ib:vf", text)
		}
		n, err := network("--interface", text, head[:at])
		if err != nil {
			return err
		}
		if n.Interface != "" {
			return usage("--interface %s: the network has an interface already; give it once", text)
		}
		n.Interface = api.Interface(head[at+1:])
		if n.Standby, n.Adapter, err = portChoices(text, words, chosen); err != nil {
			return err
		}
	}
	for _, name := range f.limited {
		n, err := network("--limited", name, name)
		if err != nil {
			return err
		}
		n.Limited = true
	}
	return nil
}

// portChoices reads what follows the kind of a port in an --interface: standby, and which adapters it may be on, KEY=VALUE.
func portChoices(text, words string, given bool) (standby bool, c api.DeviceChoice, err error) {
	if !given {
		return false, c, nil
	}
	keys := []string{api.ChoiceStandby, api.ChoicePF, api.ChoiceNUMA, api.ChoiceRail}
	seen := map[string]bool{}
	for _, pair := range strings.Split(words, ",") {
		if pair == api.ChoiceStandby {
			standby = true
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		if !slices.Contains(keys, key) {
			hint := ""
			if near := manifest.Closest(key, keys); near != "" {
				hint = "; did you mean " + near + "?"
			}
			return false, c, usage("--interface %s: %q says nothing of a port; write standby, pf=ADAPTER, numa=NODE or rail=NUMBER%s", text, pair, hint)
		}
		if seen[key] {
			return false, c, usage("--interface %s: %s is given twice; a port is on one adapter", text, key)
		}
		seen[key] = true
		if key == api.ChoicePF {
			if c.Device = value; value == "" {
				return false, c, usage("--interface %s: pf has no adapter; write its PCI address, such as pf=0000:3b:00.0, or its GUID", text)
			}
			continue
		}
		number, err := strconv.Atoi(value)
		if err != nil {
			return false, c, usage("--interface %s: %s=%s is not a number, such as %s=0", text, key, value, key)
		}
		if key == api.ChoiceNUMA {
			c.NUMANode = &number
		} else {
			c.Rail = &number
		}
	}
	return standby, c, nil
}

// ownNetworkFields sets what flags say of the cluster's own network.
func (f *createFlags) ownNetworkFields(cmd *cobra.Command, req *api.ClusterRequest) (given []string, err error) {
	for _, text := range f.interfaces {
		head, words, chosen := strings.Cut(text, ",")
		switch {
		case strings.Contains(head, ":"):
			continue
		case req.Interface != "":
			return nil, usage("--interface %s: the cluster's own network has interface %s already; give it once", text, req.Interface)
		}
		req.Interface, given = api.Interface(head), append(given, "interface")
		if req.Standby, req.Adapter, err = portChoices(text, words, chosen); err != nil {
			return nil, err
		}
	}
	if cmd.Flags().Changed("technology") {
		req.Technology, given = api.Technology(f.technology), append(given, "technology")
	}
	if cmd.Flags().Changed("cell") {
		req.Cell, given = f.cell, append(given, "cell")
	}
	return given, nil
}

func addSecurityGroup(n *api.GroupNetwork, value string) error {
	n.SecurityGroups = append(n.SecurityGroups, value)
	return nil
}

func setRates(n *api.GroupNetwork, value string) (err error) {
	if n.RatesText() != "" {
		return errors.New("the network has rates already; give them once")
	}
	n.MinRate, n.MaxRate, err = api.ParseRates(value)
	if err == nil && n.MaxRate > 0 && n.MinRate > n.MaxRate {
		return fmt.Errorf("minimum rate %v is above maximum rate %v", n.MinRate, n.MaxRate)
	}
	return err
}

func setDSCP(n *api.GroupNetwork, value string) (err error) {
	if n.DSCP != "" {
		return errors.New("the network has a DSCP already; give it once")
	}
	n.DSCP, err = api.ParseDSCP(value)
	return err
}
