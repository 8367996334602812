package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// hello is the boot agent's beginning: an address of its own exchange, and its token's for a session.
func (m *Machine) hello(ctx context.Context, s *Stages) error {
	if _, err := m.lease(ctx, s, m.system()); err != nil {
		return err
	}
	network, err := m.secure(s)
	if err != nil {
		return err
	}
	defer network.close()
	identity, err := trust.NewIdentity("")
	if err != nil {
		return err
	}
	request, err := identity.Request()
	if err != nil {
		return err
	}
	hello := boot.Hello{Token: s.Arguments.Token, Nonce: m.Hardware.UUID, MACs: m.macs(), Request: request}
	if err := network.post(ctx, s, boot.HelloPath, hello, &s.Welcome); err != nil {
		return err
	}
	if agent := s.Welcome.Agent; agent != nil {
		s.Identity = identity.Certified(s.Welcome.Name, agent.Certificate)
	}
	return m.stage(ctx, network, s, boot.StageReport{Stage: api.StageKernel})
}

// finish does what the boot is for: report what the machine is made of, or read a root as far as the fleet's configuration says.
func (m *Machine) finish(ctx context.Context, s *Stages) error {
	network, err := m.secure(s)
	if err != nil {
		return err
	}
	defer network.close()
	switch s.Welcome.Purpose {
	case api.BootEnvironment, api.BootMember:
	case api.BootClean:
		return m.clean(ctx, network, s)
	default:
		return m.report(ctx, network, s)
	}
	manifest, err := image.Decode(s.Welcome.Manifest, s.Arguments.Manifest)
	if err != nil {
		return err
	}
	if want := m.fleet.cfg.RootBytes; want != 0 {
		n, err := network.read(ctx, s.Arguments.Images+manifest.Root.Digest.Hex(), manifest.Root.SizeBytes, want)
		s.RootBytes += n
		if err != nil {
			return fmt.Errorf("read the root: %w", err)
		}
	}
	for _, stage := range []api.BootStage{api.StageRoot, api.StageAgent, api.StageReady} {
		r := boot.StageReport{Stage: stage, ReadBytes: s.RootBytes, RootBytes: manifest.Root.SizeBytes, Local: stage == api.StageReady}
		if err := m.stage(ctx, network, s, r); err != nil {
			return err
		}
	}
	return nil
}

// stage reports the end of a stage.
func (m *Machine) stage(ctx context.Context, network *client, s *Stages, r boot.StageReport) error {
	return network.post(ctx, s, boot.StagePath, r, &s.Instruction)
}

// report tells the hardware. A stranger that is told to wait waits for a person, which ends its boot here; a machine that is known is
// told soon and asks again.
func (m *Machine) report(ctx context.Context, network *client, s *Stages) error {
	r := boot.Report{Hardware: m.Hardware}
	for _, check := range []string{"memory", "ecc", "cpu", "disks", "nics", "clock", "hcas", "gpus", "pcie", "temperature", "inspection"} {
		r.Health = append(r.Health, api.HealthResult{Check: check, OK: true, Message: "fine", DurationSeconds: 0.01})
	}
	for {
		if err := network.post(ctx, s, boot.ReportPath, r, &s.Instruction); err != nil {
			return err
		}
		if s.Instruction.Do != "wait" || s.Welcome.Purpose == api.BootEnroll {
			return nil
		}
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
}

// clean reports that all disks are erased, which takes no time here, and asks until it is told to power off.
func (m *Machine) clean(ctx context.Context, network *client, s *Stages) error {
	report := boot.CleanReport{Done: true, DryRun: s.Welcome.Clean != nil && s.Welcome.Clean.DryRun}
	for _, d := range m.Hardware.Disks {
		report.Steps = append(report.Steps, api.CleanStep{
			Kind: api.CleanDisk, Target: d.Name, Serial: d.Serial, SizeBytes: d.SizeBytes, Method: "discard", State: api.CleanDone, Bytes: d.SizeBytes, TotalBytes: d.SizeBytes,
		})
	}
	if len(report.Steps) == 0 {
		report.Steps = []api.CleanStep{{Kind: api.CleanMemory, Target: "RAM", State: api.CleanSkipped}}
	}
	for s.Instruction.Do != "poweroff" {
		if err := network.post(ctx, s, boot.CleanPath, report, &s.Instruction); err != nil {
			return err
		}
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pause waits for as long as the server said.
func (s *Stages) pause(ctx context.Context) error {
	again := time.NewTimer(time.Duration(max(s.Instruction.RetrySeconds, 0.1) * float64(time.Second)))
	defer again.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-again.C:
		return nil
	}
}

func (m *Machine) macs() []string {
	var macs []string
	for _, nic := range m.Hardware.NICs {
		macs = append(macs, nic.MAC)
	}
	return macs
}

// secure is the machine's network with TLS pinned as the kernel's arguments say.
func (m *Machine) secure(s *Stages) (*client, error) {
	pin, err := trust.ParsePin(s.Arguments.Pin)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(s.Arguments.Server)
	if err != nil {
		return nil, err
	}
	c := m.network(s)
	c.transport.TLSClientConfig = trust.ClientTLS(pin, host)
	c.transport.ForceAttemptHTTP2 = true // which that configuration offers
	return c, nil
}

// postTries is how often a message is sent that gets no answer.
const postTries = 5

// send sends a message once.
func (c *client) send(ctx context.Context, s *Stages, path string, data []byte) (status int, answer []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.Arguments.Server+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if s.Welcome.Session != "" {
		request.Header.Set("Authorization", "Bearer "+s.Welcome.Session)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// post sends a message of the boot API and reads its answer.
func (c *client) post(ctx context.Context, s *Stages, path string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	var status int
	var text []byte
	for try := 1; ; try++ {
		if status, text, err = c.send(ctx, s, path, data); err == nil {
			break
		}
		// A busy server may close a connection. The boot agent calls again, too.
		if try == postTries || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		s.Repeats++
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s: %d %s: %s", path, status, http.StatusText(status), bytes.TrimSpace(text))
	}
	if len(text) == 0 {
		return nil
	}
	return json.Unmarshal(text, answer)
}
