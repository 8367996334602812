package smp

import (
	"encoding/binary"
	"fmt"
)

// attributeBytes is the length of an attribute's data.
const attributeBytes = 64

// KeysABlock is how many partition keys one block of a P_KeyTable has.
const KeysABlock = 32

// NodeInfo is what a port says of itself (InfiniBand Architecture Specification 1.2.1, 14.2.5.3).
type NodeInfo struct {
	Switch             bool
	Ports              int
	NodeGUID, PortGUID uint64
	// Room is how many partition keys the table of each port has room for; of a switch, only that of its port 0.
	Room int
	// Port is the number of the port that answered.
	Port int
}

// PortInfo is a part of what a port says of its place in the subnet (14.2.5.6).
type PortInfo struct {
	LID, ManagerLID int
	// Manager: a subnet manager runs on the port (capability mask, bit 1).
	Manager bool
}

// ManagerState is what a subnet manager is (14.4.1, table 155).
type ManagerState int

// The states of subnet managers.
const (
	NotActive ManagerState = iota
	Discovering
	Standby
	Master
)

// String returns the state in a word.
func (s ManagerState) String() string {
	if names := []string{"not active", "discovering", "standby", "master"}; int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", int(s))
}

// ManagerInfo is what a subnet manager says of itself (14.2.5.13).
type ManagerInfo struct {
	GUID     uint64
	Priority int
	State    ManagerState
}

func short(data []byte) error {
	if len(data) != attributeBytes {
		return fmt.Errorf("an attribute has %d bytes, not %d", len(data), attributeBytes)
	}
	return nil
}

// DecodeNodeInfo decodes a NodeInfo.
func DecodeNodeInfo(data []byte) (NodeInfo, error) {
	if err := short(data); err != nil {
		return NodeInfo{}, err
	}
	return NodeInfo{
		Switch: data[2] == 2, Ports: int(data[3]), NodeGUID: binary.BigEndian.Uint64(data[12:]), PortGUID: binary.BigEndian.Uint64(data[20:]),
		Room: int(binary.BigEndian.Uint16(data[28:])), Port: int(data[36]),
	}, nil
}

// DecodeSwitchRoom decodes how many partition keys the table of each external port of a switch has room for, from its SwitchInfo (14.2.5.4); 0: the
// switch enforces no partitions.
func DecodeSwitchRoom(data []byte) (int, error) {
	if err := short(data); err != nil {
		return 0, err
	}
	return int(binary.BigEndian.Uint16(data[14:])), nil
}

// DecodePortInfo decodes a PortInfo.
func DecodePortInfo(data []byte) (PortInfo, error) {
	if err := short(data); err != nil {
		return PortInfo{}, err
	}
	return PortInfo{
		LID: int(binary.BigEndian.Uint16(data[16:])), ManagerLID: int(binary.BigEndian.Uint16(data[18:])),
		Manager: binary.BigEndian.Uint32(data[20:])&2 != 0,
	}, nil
}

// DecodeManagerInfo decodes an SMInfo.
func DecodeManagerInfo(data []byte) (ManagerInfo, error) {
	if err := short(data); err != nil {
		return ManagerInfo{}, err
	}
	return ManagerInfo{GUID: binary.BigEndian.Uint64(data), Priority: int(data[20] >> 4), State: ManagerState(data[20] & 15)}, nil
}

// Key is one entry of a P_KeyTable.
type Key struct {
	// Number is without the membership bit.
	Number  int
	Limited bool
}

// DecodeKeys decodes one block of a P_KeyTable (14.2.5.7), without its empty entries.
func DecodeKeys(data []byte) ([]Key, error) {
	if err := short(data); err != nil {
		return nil, err
	}
	var keys []Key
	for i := 0; i < attributeBytes; i += 2 {
		key := int(binary.BigEndian.Uint16(data[i:]))
		if key&0x7fff != 0 {
			keys = append(keys, Key{Number: key & 0x7fff, Limited: key&0x8000 == 0})
		}
	}
	return keys, nil
}

// KeyTable returns the requests for the blocks of a table of partition keys: of the adapter's port that has the LID if port is 0, else of that
// external port of the switch.
func KeyTable(lid, port, room int) []Request {
	var all []Request
	for block := 0; block*KeysABlock < room; block++ {
		all = append(all, Request{LID: lid, Attribute: AttributePKeyTable, Modifier: uint32(port)<<16 | uint32(block)})
	}
	return all
}
