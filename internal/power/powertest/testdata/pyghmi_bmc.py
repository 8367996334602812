"""A BMC of pyghmi, the library that virtualbmc is made of, for one pretended machine.

usage: pyghmi_bmc.py ADDRESS PORT USER PASSWORD. Prints "ready", then one line for each thing that happens.
"""
import sys

import pyghmi.ipmi.bmc as bmc


def say(text):
    print(text, flush=True)


class Machine(bmc.Bmc):
    state = 'off'
    boot = 'default'

    def get_boot_device(self):
        return self.boot

    def set_boot_device(self, device):
        self.boot = device
        say('boot ' + device)

    def get_power_state(self):
        return self.state

    def power(self, state):
        self.state = state
        say('power ' + state)

    def power_off(self):
        self.power('off')

    def power_on(self):
        self.power('on')

    def power_shutdown(self):
        say('shutdown')
        self.power('off')

    def power_reset(self):
        say('reset')

    def is_active(self):
        return self.state == 'on'

    def iohandler(self, data):
        if self.sol:
            self.sol.send_data(data)


machine = Machine({sys.argv[3]: sys.argv[4]}, address='::ffff:' + sys.argv[1], port=int(sys.argv[2]))
say('ready')
machine.listen()
