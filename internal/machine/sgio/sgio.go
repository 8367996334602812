// Package sgio is the kernel's interface to send commands to disks: SG_IO and its header (scsi/sg.h).
//
// It must never decide what is sent. Start with Header.
package sgio

import "unsafe"

// Request is SG_IO.
const Request = 0x2285

// Header is struct sg_io_hdr. TimeoutMS and Duration are in milliseconds.
type Header struct {
	InterfaceID, Direction int32
	CommandLen, SenseMax   byte
	Segments               uint16
	Length                 uint32
	Data, Command, Sense   unsafe.Pointer
	TimeoutMS, Flags       uint32
	PackID                 int32
	_                      int32
	User                   unsafe.Pointer
	Status, MaskedStatus   byte
	MessageStatus, Written byte
	HostStatus, Driver     uint16
	Residual               int32
	Duration, Info         uint32
}
