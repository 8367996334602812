package cleaning

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/nearmetal/nearmetal/api"
)

// Numbers of TPM 2.0 (TCG TPM 2.0 Library, part 2, sections 6 and 7).
const (
	tpmNoSessions, tpmSessions = 0x8001, 0x8002
	tpmClear, tpmGetCapability = 0x126, 0x17a

	tpmLockout, tpmPlatform = 0x4000000a, 0x4000000c
	tpmPassword             = 0x40000009 // a session whose authorization is a password

	tpmHandles, tpmProperties = 1, 6
	tpmPermanent              = 0x200      // the property with the bits of permanent attributes
	tpmPersistent             = 0x81000000 // the first handle of persistent objects
	tpmPlatformPersistent     = 0x81800000 // the first of those that are the platform's
	tpmAuthorizations         = 0b111      // owner, endorsement and lockout have an authorization

	tpmHeaderBytes = 10
	tpmMostBytes   = 4096
)

// tpmText is the method of this step.
const tpmText = "TPM2_Clear"

// planTPM is the step about the TPM before anything is done.
func (m *Machine) planTPM() api.CleanStep {
	s := api.CleanStep{Kind: api.CleanTPM, Target: "TPM", State: api.CleanPlanned, Method: tpmText}
	device, err := m.TPM()
	switch {
	case err != nil:
		s.State, s.Method, s.Message = api.CleanFailed, "", err.Error()
	case device == nil:
		s.State, s.Method, s.Message = api.CleanSkipped, "", "the machine has none"
	default:
		_ = device.Close() // it was only looked for
	}
	return s
}

// cleanTPM clears the TPM: all that is of its owner goes, with the keys that the owner's objects are encrypted with.
func (m *Machine) cleanTPM(out step) {
	if !out.isPlanned() {
		return
	}
	out.start()
	device, err := m.TPM()
	if err == nil && device == nil {
		err = errors.New("it is gone")
	}
	if err != nil {
		out.finish(api.CleanFailed, "", err.Error())
		return
	}
	defer func() { _ = device.Close() }()
	by, err := clearTPM(device)
	if err == nil {
		err = wantCleared(device)
	}
	if err != nil {
		out.finish(api.CleanFailed, "", err.Error())
		return
	}
	out.change(func(c *api.CleanStep) { c.Method = tpmText + " by " + by })
	out.finish(api.CleanDone, "no persistent object of an owner and no authorization is left", "")
}

// clearTPM clears it by the lockout hierarchy, or by the platform's where a tenant has set an authorization or forbidden it. Firmware usually has
// given the platform's an authorization that nobody knows.
func clearTPM(device io.ReadWriter) (by string, err error) {
	first := tpmDo(device, tpmClear, tpmLockout)
	if first == nil {
		return "the lockout hierarchy", nil
	}
	if second := tpmDo(device, tpmClear, tpmPlatform); second != nil {
		return "", fmt.Errorf("a tenant or the firmware forbids it: by the lockout hierarchy: %w; by the platform hierarchy: %w; clear it in the firmware's setup",
			first, second)
	}
	return "the platform hierarchy", nil
}

// tpmCode is a response code (part 2, section 6.6).
type tpmCode uint32

func (c tpmCode) Error() string {
	switch {
	case c&0xff == 0xa2 || c&0xff == 0x8e:
		return fmt.Sprintf("its authorization is not empty (0x%03x)", uint32(c))
	case c == 0x120:
		return "clearing is disabled (0x120)"
	case c == 0x921:
		return "it is locked after wrong authorizations (0x921)"
	default:
		return fmt.Sprintf("response 0x%03x", uint32(c))
	}
}

// tpmDo sends a command on a handle, with an empty password.
func tpmDo(device io.ReadWriter, command, handle uint32) error {
	body := binary.BigEndian.AppendUint32(nil, handle)
	body = binary.BigEndian.AppendUint32(body, 9) // the size of the authorization: session, empty nonce, attributes, empty password
	body = binary.BigEndian.AppendUint32(body, tpmPassword)
	body = append(body, 0, 0, 0, 0, 0)
	_, err := tpmSend(device, tpmSessions, command, body)
	return err
}

// tpmSend sends a command and returns the answer's body.
func tpmSend(device io.ReadWriter, tag uint16, command uint32, body []byte) ([]byte, error) {
	message := binary.BigEndian.AppendUint16(nil, tag)
	message = binary.BigEndian.AppendUint32(message, uint32(tpmHeaderBytes+len(body)))
	message = append(binary.BigEndian.AppendUint32(message, command), body...)
	if _, err := device.Write(message); err != nil {
		return nil, fmt.Errorf("send it a command: %w", err)
	}
	answer := make([]byte, tpmMostBytes)
	n, err := device.Read(answer)
	if err != nil {
		return nil, fmt.Errorf("read its answer: %w", err)
	}
	if n < tpmHeaderBytes || int(binary.BigEndian.Uint32(answer[2:])) != n {
		return nil, fmt.Errorf("its answer of %d bytes can't be read", n)
	}
	if code := tpmCode(binary.BigEndian.Uint32(answer[6:])); code != 0 {
		return nil, code
	}
	return answer[tpmHeaderBytes:n], nil
}

// wantCleared checks that nothing of an owner is left.
func wantCleared(device io.ReadWriter) error {
	handles, err := tpmCapability(device, tpmHandles, tpmPersistent, 64, 4)
	if err != nil {
		return fmt.Errorf("ask for what is left: %w", err)
	}
	for ; len(handles) >= 4; handles = handles[4:] {
		if h := binary.BigEndian.Uint32(handles); h >= tpmPersistent && h < tpmPlatformPersistent {
			return fmt.Errorf("the persistent object 0x%08x is left", h)
		}
	}
	property, err := tpmCapability(device, tpmProperties, tpmPermanent, 1, 8)
	if err != nil {
		return fmt.Errorf("ask for what is left: %w", err)
	}
	if len(property) < 8 || binary.BigEndian.Uint32(property) != tpmPermanent {
		return errors.New("it does not say whether authorizations are left")
	}
	if left := binary.BigEndian.Uint32(property[4:]) & tpmAuthorizations; left != 0 {
		return fmt.Errorf("authorizations are left (0b%03b: owner, endorsement, lockout)", left)
	}
	return nil
}

// tpmCapability asks for up to so many items of a capability, each of so many bytes (part 3, section 30.2).
func tpmCapability(device io.ReadWriter, capability, from, most uint32, itemBytes int) ([]byte, error) {
	body := binary.BigEndian.AppendUint32(nil, capability)
	body = binary.BigEndian.AppendUint32(body, from)
	body = binary.BigEndian.AppendUint32(body, most)
	answer, err := tpmSend(device, tpmNoSessions, tpmGetCapability, body)
	if err != nil {
		return nil, err
	}
	const head = 9 // more data, capability, count
	if len(answer) < head || binary.BigEndian.Uint32(answer[1:]) != capability {
		return nil, errors.New("its answer can't be read")
	}
	count := int(binary.BigEndian.Uint32(answer[5:]))
	if count < 0 || count > (len(answer)-head)/itemBytes {
		return nil, errors.New("its answer is cut")
	}
	return answer[head : head+count*itemBytes], nil
}
