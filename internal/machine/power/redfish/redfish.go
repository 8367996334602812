// Package redfish is the power switch of machines whose BMC speaks DMTF Redfish.
//
// It follows the Redfish Specification (DSP0266) and schema ComputerSystem (DSP0268): systems are found by following links from the service
// root, reset types and boot targets taken from what the service says it allows. Each call logs in and out again; certificates are
// verified, or pinned, always; passwords go nowhere but into the login. It must never take a state that it does not know for off. Start
// with Switch.
package redfish

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// Switch is one machine's. It keeps the contract of power.Switch.
type Switch struct {
	base        *url.URL
	system      string // Id, UUID or Name; "" for the only one
	credentials power.Credentials
	passwords   *power.Passwords
	transport   *http.Transport
	address     string // as it was given

	mu   sync.Mutex
	path string // of the system, once it was found
	// left are clients whose sessions could not be ended when they should have been: the service did not answer.
	left []*client
}

// mostLeft is as many sessions as BMCs have: older ones have ended by themselves.
const mostLeft = 8

// New makes the switch of a machine whose BMC's service is at an http or https URL.
func New(t power.Target) (*Switch, error) {
	base, err := url.Parse(t.Control.Address)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("power of %q: %q is not the address of a Redfish BMC; give a URL like https://10.0.0.7", t.Name, t.Control.Address)
	}
	if p := strings.Trim(base.Path, "/"); p != "" && p != "redfish/v1" || base.User != nil || base.RawQuery != "" {
		return nil, fmt.Errorf("power of %q: give only scheme, host and port as the address: https://%s", t.Name, base.Host)
	}
	base.Path = "/redfish/v1/"
	config, err := tlsConfig(t.Control.CertificateSHA256)
	if err != nil {
		return nil, fmt.Errorf("power of %q: %w", t.Name, err)
	}
	if t.Credentials.User == "" {
		t.Credentials.User = t.Control.User
	}
	return &Switch{
		base: base, system: t.Control.System, credentials: t.Credentials, passwords: power.NewPasswords(t.Credentials), address: t.Control.Address,
		// No proxy: BMCs are on a network of their own.
		transport: &http.Transport{
			TLSClientConfig: config, MaxConnsPerHost: 1, ForceAttemptHTTP2: false,
			DialContext: (&net.Dialer{Timeout: connectTimeout}).DialContext, ResponseHeaderTimeout: answerTimeout,
		},
	}, nil
}

// How long a BMC may take to accept a connection, and to answer one request.
const (
	connectTimeout = 5 * time.Second
	answerTimeout  = 10 * time.Second
)

// String keeps the password out of logs: fmt would print it from within.
func (s *Switch) String() string { return "Redfish at " + s.base.Host }

// GoString does so too.
func (s *Switch) GoString() string { return s.String() }

// Kind is api.PowerRedfish.
func (*Switch) Kind() api.PowerKind { return api.PowerRedfish }

// Abilities are all; which boot targets a machine has, its BMC tells when asked.
func (*Switch) Abilities() power.Abilities {
	return power.Abilities{Observes: true, ForcesOff: true, SelectsBoot: true, HTTPBoot: true}
}

// Observe reads PowerState. PoweringOn, PoweringOff, Paused and null are neither on nor off.
func (s *Switch) Observe(ctx context.Context) (api.PowerState, error) {
	state := api.PowerUnknown
	err := s.session(ctx, func(c *client) error {
		system, err := s.find(ctx, c)
		if err == nil {
			state = system.power()
		}
		return err
	})
	return state, err
}

// On makes the next boot what is asked and powers on, if the machine is not on.
func (s *Switch) On(ctx context.Context, boot power.BootDevice) error {
	return s.order(ctx, api.PowerOn, []string{"On", "ForceOn"}, func(c *client, system *computerSystem) error {
		if !boot.Network && boot.URI == "" {
			return nil
		}
		return overrideBoot(ctx, c, system, boot)
	})
}

// Off cuts the power.
func (s *Switch) Off(ctx context.Context) error {
	return s.order(ctx, api.PowerOff, []string{"ForceOff"}, nil)
}

// Shutdown asks the machine's system to end.
func (s *Switch) Shutdown(ctx context.Context) error {
	return s.order(ctx, api.PowerOff, []string{"GracefulShutdown"}, nil)
}

// order resets the system by the first type that is allowed, unless it is as wanted already.
func (s *Switch) order(ctx context.Context, want api.PowerState, types []string, before func(*client, *computerSystem) error) error {
	return s.session(ctx, func(c *client) error {
		system, err := s.find(ctx, c)
		if err != nil || system.power() == want {
			return err
		}
		kind, err := system.resetType(ctx, c, types)
		if err != nil {
			return err
		}
		if before != nil {
			if err := before(c, system); err != nil {
				return err
			}
		}
		err = c.post(ctx, system.Actions.Reset.Target, map[string]string{"ResetType": kind})
		if err == nil || ctx.Err() != nil {
			return err
		}
		// Services differ in what they answer to orders that change nothing, and somebody else may have been faster.
		if again, failed := s.find(ctx, c); failed == nil && again.power() == want {
			return nil
		}
		return err
	})
}

// computerSystem is what is read of a ComputerSystem.
type computerSystem struct {
	Path       string  `json:"@odata.id"`
	ETag       string  `json:"@odata.etag"`
	ID         string  `json:"Id"`
	UUID       string  `json:"UUID"`
	Name       string  `json:"Name"`
	PowerState *string `json:"PowerState"`
	Links      struct {
		Chassis   []link `json:"Chassis"`
		ManagedBy []link `json:"ManagedBy"`
	} `json:"Links"`
	LogServices link `json:"LogServices"`
	Boot        struct {
		Targets []string `json:"BootSourceOverrideTarget@Redfish.AllowableValues"`
	} `json:"Boot"`
	Actions struct {
		Reset struct {
			Target string   `json:"target"`
			Types  []string `json:"ResetType@Redfish.AllowableValues"`
			Info   string   `json:"@Redfish.ActionInfo"`
		} `json:"#ComputerSystem.Reset"`
	} `json:"Actions"`
}

func (s *computerSystem) power() api.PowerState {
	switch {
	case s.PowerState == nil:
		return api.PowerUnknown
	case *s.PowerState == "On":
		return api.PowerOn
	case *s.PowerState == "Off":
		return api.PowerOff
	}
	return api.PowerUnknown
}

// resetType is the first of the types that the system allows. A system that does not say what it allows is asked for the first.
func (s *computerSystem) resetType(ctx context.Context, c *client, types []string) (string, error) {
	if s.Actions.Reset.Target == "" {
		return "", fmt.Errorf("system %q has no action to change its power: %w", s.ID, power.ErrCannot)
	}
	allowed := s.Actions.Reset.Types
	if len(allowed) == 0 && s.Actions.Reset.Info != "" {
		var info struct {
			Parameters []struct {
				Name   string   `json:"Name"`
				Values []string `json:"AllowableValues"`
			} `json:"Parameters"`
		}
		if err := c.get(ctx, s.Actions.Reset.Info, &info); err != nil {
			return "", err
		}
		for _, p := range info.Parameters {
			if p.Name == "ResetType" {
				allowed = p.Values
			}
		}
	}
	if len(allowed) == 0 {
		return types[0], nil
	}
	for _, t := range types {
		if slices.Contains(allowed, t) {
			return t, nil
		}
	}
	return "", fmt.Errorf("system %q does not support the reset %s, only %s: %w", s.ID, strings.Join(types, " or "), strings.Join(allowed, ", "), power.ErrCannot)
}

// overrideBoot makes the next boot, and no later one, come from the network. The mode, UEFI or legacy, stays as it is.
func overrideBoot(ctx context.Context, c *client, system *computerSystem, boot power.BootDevice) error {
	allowed := func(target string) bool {
		return len(system.Boot.Targets) == 0 || slices.Contains(system.Boot.Targets, target)
	}
	override := func(settings map[string]string) error {
		settings["BootSourceOverrideEnabled"] = "Once"
		if err := c.patch(ctx, system.Path, map[string]any{"Boot": settings}); err != nil {
			return fmt.Errorf("select the network as next boot device: %w", err)
		}
		return nil
	}
	if boot.URI != "" && boot.Firmware != api.FirmwareBIOS && slices.Contains(system.Boot.Targets, "UefiHttp") {
		err := override(map[string]string{"BootSourceOverrideTarget": "UefiHttp", "HttpBootUri": boot.URI})
		var status *statusError
		if !errors.As(err, &status) || status.code != http.StatusBadRequest {
			return err
		} // it lists what it can't do, or not with this URI; it can boot by PXE perhaps
	}
	if !allowed("Pxe") {
		return fmt.Errorf("system %q can't boot from the network, only from %s; check its firmware's settings", system.ID, strings.Join(system.Boot.Targets, ", "))
	}
	return override(map[string]string{"BootSourceOverrideTarget": "Pxe"})
}

// find reads the system. Its path is searched for once, and again if it is no longer there.
func (s *Switch) find(ctx context.Context, c *client) (*computerSystem, error) {
	s.mu.Lock()
	path := s.path
	s.mu.Unlock()
	if path != "" {
		system, err := c.system(ctx, path)
		var status *statusError
		if !errors.As(err, &status) || status.code != http.StatusNotFound {
			return system, err
		}
	}
	system, err := s.search(ctx, c)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.path = system.Path
	s.mu.Unlock()
	return system, nil
}

// search goes through the service's systems: by the last part of their paths first, which is the Id by custom, then by what they say.
func (s *Switch) search(ctx context.Context, c *client) (*computerSystem, error) {
	if c.root.Systems.Path == "" {
		return nil, errors.New("the service has no systems; is it a BMC?")
	}
	paths, err := c.members(ctx, c.root.Systems.Path)
	if err != nil {
		return nil, err
	}
	if s.system == "" {
		if len(paths) != 1 {
			return nil, fmt.Errorf("the service has %d systems (%s); name the machine's system in power.system, by Id, UUID or Name", len(paths), listed(paths))
		}
		return c.system(ctx, paths[0])
	}
	for _, path := range paths {
		if last := path[strings.LastIndexByte(path, '/')+1:]; strings.EqualFold(last, s.system) {
			return c.system(ctx, path)
		}
	}
	var found []*computerSystem
	for _, path := range paths {
		system, err := c.system(ctx, path)
		if err != nil {
			return nil, err
		}
		if system.ID == s.system || strings.EqualFold(system.UUID, s.system) {
			return system, nil
		}
		if system.Name == s.system {
			found = append(found, system)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("the service has no system with Id, UUID or Name %q; its systems are %s", s.system, listed(paths))
	}
	return nil, fmt.Errorf("%d systems of the service are named %q; use the Id or UUID", len(found), s.system)
}

// listed names a few systems.
func listed(paths []string) string {
	var names []string
	for _, p := range paths {
		names = append(names, p[strings.LastIndexByte(p, '/')+1:])
	}
	const few = 8
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return strings.Join(names, ", ")
}
