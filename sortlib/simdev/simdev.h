// What the two halves of the device share: memory and generators (runtime.cpp), and operators (operators.cpp).
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

namespace simdev {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// Raises unless the number is that of the one device, or stands for the current one.
void check_index(c10::DeviceIndex index);

// The device's memory. It is host memory, under another name.
c10::Allocator* allocator();

// Device memory over a CPU storage, which it keeps alive.
c10::DataPtr adopt(c10::Storage host);

// CPU memory over a device storage, which it keeps alive.
c10::DataPtr lend(c10::Storage device);

const at::Generator& default_generator();

// The CPU generator that draws the numbers of one of the device's.
at::Generator host_generator(const at::Generator& generator);

} // namespace simdev
