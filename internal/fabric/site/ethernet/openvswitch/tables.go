package openvswitch

import (
	"encoding/json"
	"fmt"
	"slices"
)

// uuid is a reference to a row, ["uuid", "..."] (RFC 7047, section 5.1).
type uuid struct{ ID string }

func (u *uuid) UnmarshalJSON(text []byte) error {
	var pair [2]string
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	u.ID = pair[1]
	return nil
}

func (u uuid) MarshalJSON() ([]byte, error) { return json.Marshal([2]string{"uuid", u.ID}) }

// set is a set of values: one value stands for itself, several are ["set", [...]].
type set[T any] []T

func (s *set[T]) UnmarshalJSON(text []byte) error {
	var one T
	if err := json.Unmarshal(text, &one); err == nil {
		*s = set[T]{one}
		return nil
	}
	var pair [2]json.RawMessage
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	if string(pair[0]) != `"set"` {
		return fmt.Errorf("%s is no set", text)
	}
	var all []T
	err := json.Unmarshal(pair[1], &all)
	*s = all
	return err
}

func (s set[T]) MarshalJSON() ([]byte, error) {
	if s == nil {
		s = set[T]{}
	}
	return json.Marshal([]any{"set", []T(s)})
}

// dictionary is a map of strings, ["map", [[key, value], ...]].
type dictionary map[string]string

func (d *dictionary) UnmarshalJSON(text []byte) error {
	var pair [2]json.RawMessage
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	var all [][2]string
	if err := json.Unmarshal(pair[1], &all); err != nil {
		return err
	}
	*d = dictionary{}
	for _, kv := range all {
		(*d)[kv[0]] = kv[1]
	}
	return nil
}

func (d dictionary) MarshalJSON() ([]byte, error) {
	all := [][2]string{}
	for k, v := range d {
		all = append(all, [2]string{k, v})
	}
	slices.SortFunc(all, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	return json.Marshal([]any{"map", all})
}

// The columns of ovs-vswitchd.conf.db(5) that are read.
type (
	rootRow struct {
		ID uuid `json:"_uuid"`
		// NextCfg grows with each change that somebody waits for, CurCfg follows when ovs-vswitchd has carried it out.
		NextCfg int `json:"next_cfg"`
		CurCfg  int `json:"cur_cfg"`
	}
	bridgeRow struct {
		ID          uuid       `json:"_uuid"`
		ExternalIDs dictionary `json:"external_ids"`
		Ports       set[uuid]  `json:"ports"`
		Controller  set[uuid]  `json:"controller"`
	}
	portRow struct {
		ID         uuid        `json:"_uuid"`
		Name       string      `json:"name"`
		Mode       set[string] `json:"vlan_mode"`
		Tag        set[int]    `json:"tag"`
		Trunks     set[int]    `json:"trunks"`
		Protected  bool        `json:"protected"`
		Interfaces set[uuid]   `json:"interfaces"`
	}
	interfaceRow struct {
		ID     uuid        `json:"_uuid"`
		Error  set[string] `json:"error"`
		OFPort set[int]    `json:"ofport"`
	}
)

// tables are one moment of a switch's database.
type tables struct {
	root       rootRow
	bridge     bridgeRow
	ports      map[string]portRow // of the bridge
	interfaces map[string]interfaceRow
}

func (s *Switch) selects() []operation {
	all := func(table string, columns ...string) operation {
		return operation{"op": "select", "table": table, "where": []any{}, "columns": append(columns, "_uuid")}
	}
	bridge := all("Bridge", "external_ids", "ports", "controller")
	bridge["where"] = []any{[]any{"name", "==", s.cfg.Bridge}}
	return []operation{
		all("Open_vSwitch", "next_cfg", "cur_cfg"), bridge, all("Port", "name", "vlan_mode", "tag", "trunks", "protected", "interfaces"),
		all("Interface", "error", "ofport"),
	}
}

func rowsOf[T any](r result, what string) ([]T, error) {
	var all []T
	for _, text := range r.Rows {
		var row T
		if err := json.Unmarshal(text, &row); err != nil {
			return nil, fmt.Errorf("a row of table %s can't be read: %w: %s", what, err, text)
		}
		all = append(all, row)
	}
	return all, nil
}

func (s *Switch) tablesOf(results []result) (t tables, err error) {
	roots, err := rowsOf[rootRow](results[0], "Open_vSwitch")
	if err != nil {
		return t, err
	}
	bridges, err := rowsOf[bridgeRow](results[1], "Bridge")
	if err != nil {
		return t, err
	}
	ports, err := rowsOf[portRow](results[2], "Port")
	if err != nil {
		return t, err
	}
	interfaces, err := rowsOf[interfaceRow](results[3], "Interface")
	if err != nil {
		return t, err
	}
	if len(roots) != 1 {
		return t, fmt.Errorf("%s: the database has %d rows of table Open_vSwitch, not one; run: ovs-vsctl init", s.cfg.Address, len(roots))
	}
	if len(bridges) != 1 {
		return t, fmt.Errorf("%s: the switch has no bridge %s; make it with: ovs-vsctl add-br %s", s.cfg.Address, s.cfg.Bridge, s.cfg.Bridge)
	}
	if len(bridges[0].Controller) > 0 {
		return t, fmt.Errorf("bridge %s has an OpenFlow controller, whose rules may pass frames between VLANs; remove it with: ovs-vsctl del-controller %s", s.cfg.Bridge, s.cfg.Bridge)
	}
	t = tables{root: roots[0], bridge: bridges[0], ports: map[string]portRow{}, interfaces: map[string]interfaceRow{}}
	for _, p := range ports {
		if slices.Contains(t.bridge.Ports, p.ID) {
			t.ports[p.Name] = p
		}
	}
	for _, i := range interfaces {
		t.interfaces[i.ID.ID] = i
	}
	return t, nil
}
