package shaper

import (
	"errors"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Messages about queues, classes and filters in rtnetlink(7), as far as the netlink library can't write or read all that is needed of them.

// object is a queue, a class or a filter of a link.
type object struct {
	index          int
	handle, parent uint32
	info           uint32
	kind           string
	options        []byte
}

// modify sends a request about an object; options are the value of TCA_OPTIONS, as bytes or as attributes.
func modify(command, flags int, o object, options any) error {
	req := nl.NewNetlinkRequest(command, flags|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(o.index), Handle: o.handle, Parent: o.parent, Info: o.info})
	if o.kind != "" {
		req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(o.kind)))
	}
	switch options := options.(type) {
	case []byte:
		req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, options))
	case []*nl.RtAttr:
		all := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
		for _, attr := range options {
			all.AddChild(attr)
		}
		req.AddData(all)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// list lists the objects of a link, or the queues of all links with index 0. A reading that a change interrupted is repeated.
func list(command, reply uint16, index int, parent uint32) (objects []object, err error) {
	const attempts = 10
	for range attempts {
		objects, err = listOnce(command, reply, index, parent)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return objects, err
}

func listOnce(command, reply uint16, index int, parent uint32) ([]object, error) {
	req := nl.NewNetlinkRequest(int(command), unix.NLM_F_DUMP)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: parent})
	messages, err := req.Execute(unix.NETLINK_ROUTE, reply)
	if err != nil {
		return nil, err
	}
	var objects []object
	for _, m := range messages {
		msg := nl.DeserializeTcMsg(m)
		if index != 0 && int(msg.Ifindex) != index {
			continue
		}
		attrs, err := nl.ParseRouteAttrAsMap(m[msg.Len():])
		if err != nil {
			return nil, err
		}
		objects = append(objects, object{
			index: int(msg.Ifindex), handle: msg.Handle, parent: msg.Parent, info: msg.Info,
			kind: unix.ByteSliceToString(attrs[nl.TCA_KIND].Value), options: attrs[nl.TCA_OPTIONS].Value,
		})
	}
	return objects, nil
}
