package shaper

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/clsact"
)

// The filter's place among those of a link (tc(8)): its priority is "nr".
const (
	filterPriority = 0x6e72
	filterHandle   = 1
	filterPrefix   = "nearmetal-rate"
)

// filterName says what the program does, and by which tag the kernel knows it, so that another process can read both.
func filterName(w work, tag string) string {
	return fmt.Sprintf("%s/%d/%d/%s", filterPrefix, w.class, w.dscp, tag)
}

// workOf returns what the program of a port does for its limit.
func workOf(limit Limit) (w work, err error) {
	w = work{class: limit.Class, dscp: -1}
	if limit.DSCP != "" {
		w.dscp, err = strconv.Atoi(limit.DSCP)
	}
	return w, err
}

func filterObject(index int) object {
	return object{
		kind: "bpf", index: index, parent: netlink.HANDLE_MIN_INGRESS, handle: filterHandle, info: netlink.MakeHandle(filterPriority, nl.Swap16(unix.ETH_P_ALL)),
	}
}

// setFilter puts the program where frames come in at a port, in place of another. Frames of a class go to the device from there. The action
// mirred does that on every kernel; a program's own redirection to such a device is dropped before Linux 6.4.
func setFilter(link netlink.Link, device int, limit Limit) error {
	w, err := workOf(limit)
	if err != nil {
		return err
	}
	if w.class == 0 && w.dscp < 0 {
		return deleteFilter(link)
	}
	loaded, tag, err := load(w)
	if err != nil {
		return err
	}
	defer func() { _ = loaded.Close() }()
	if err := clsact.Prepare(link); err != nil {
		return err
	}
	options := []*nl.RtAttr{
		nl.NewRtAttr(nl.TCA_BPF_FD, nl.Uint32Attr(uint32(loaded.FD()))),
		nl.NewRtAttr(nl.TCA_BPF_NAME, nl.ZeroTerminated(filterName(w, tag))),
	}
	if w.class != 0 {
		actions := nl.NewRtAttr(nl.TCA_BPF_ACT, nil)
		if err := netlink.EncodeActions(actions, []netlink.Action{netlink.NewMirredAction(device)}); err != nil {
			return err
		}
		options = append(options, actions)
	}
	return modify(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE, filterObject(link.Attrs().Index), options)
}

// deleteFilter removes the program from a port. A port without it is no error.
func deleteFilter(link netlink.Link) error {
	err := modify(unix.RTM_DELTFILTER, 0, filterObject(link.Attrs().Index), nil)
	if clsact.IsAbsent(err) {
		return nil
	}
	return err
}

// filterState is what the filter of a port does.
type filterState struct {
	work
	whole bool
}

// readFilter returns what the filter of a port does, nil if there is none.
func (s *Shaper) readFilter(index, device int) (*filterState, error) {
	filters, err := list(unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, index, netlink.HANDLE_MIN_INGRESS)
	if clsact.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		if f.kind != "bpf" || f.info>>16 != filterPriority || len(f.options) == 0 {
			continue
		}
		return s.parseFilter(f.options, device)
	}
	return nil, nil
}

func (s *Shaper) parseFilter(options []byte, device int) (*filterState, error) {
	attrs, err := nl.ParseRouteAttrAsMap(options)
	if err != nil {
		return nil, err
	}
	state := &filterState{work: work{dscp: -1}}
	name := unix.ByteSliceToString(attrs[nl.TCA_BPF_NAME].Value)
	if _, err := fmt.Sscanf(name, filterPrefix+"/%d/%d/", &state.class, &state.dscp); err != nil {
		return state, nil //nolint:nilerr // somebody else's filter is not whole
	}
	tag, err := s.tag(state.work)
	if err != nil {
		return nil, err
	}
	sent, err := redirected(attrs[nl.TCA_BPF_ACT].Value)
	if err != nil {
		return nil, err
	}
	state.whole = name == filterName(state.work, tag) && hex.EncodeToString(attrs[nl.TCA_BPF_TAG].Value) == tag
	state.whole = state.whole && (state.class == 0 && sent == 0 || state.class != 0 && sent == device)
	return state, nil
}

// redirected returns the link that the first action redirects to, 0 for none.
func redirected(actions []byte) (int, error) {
	table, err := nl.ParseRouteAttrAsMap(actions)
	if err != nil {
		return 0, err
	}
	action, err := nl.ParseRouteAttrAsMap(table[nl.TCA_ACT_TAB].Value)
	if err != nil || unix.ByteSliceToString(action[nl.TCA_ACT_KIND].Value) != "mirred" {
		return 0, err
	}
	options, err := nl.ParseRouteAttrAsMap(action[nl.TCA_ACT_OPTIONS].Value)
	if err != nil {
		return 0, err
	}
	parameters := options[nl.TCA_MIRRED_PARMS].Value
	const actionAt, indexAt = 20, 24 // of tc_mirred in linux/tc_act/tc_mirred.h
	if len(parameters) < indexAt+4 || binary.NativeEndian.Uint32(parameters[actionAt:]) != uint32(netlink.TCA_EGRESS_REDIR) {
		return 0, nil
	}
	return int(binary.NativeEndian.Uint32(parameters[indexAt:])), nil
}
